// Who holds the guest's user objects, and when their destructors are offered to it.
#include "host-daemon/execution/objects/user_object_book.h"

#include <gtest/gtest.h>

#include <vector>

namespace gantry::worker {
namespace {

struct Books {
    Books() {
        book.set_offer([this](const UserObjectBook::Destructor& destructor) {
            offered.push_back(destructor.argument);
        });
    }
    /// An object of the guest's, with one reference of its own.
    UserObjectBook::Made add(std::uint64_t number) {
        const UserObjectBook::Made made = book.prepare(handle(number), {1, number});
        Object object;
        object.handle = handle(number);
        object.native = number;
        EXPECT_TRUE(objects.insert(std::move(object)));
        book.add(made, native(number), 1, 0);
        return made;
    }
    static std::uint64_t handle(std::uint64_t number) {
        return cuda::make_handle(HandleKind::kUserObject, number << 24);
    }
    static CUuserObject native(std::uint64_t number) {
        return reinterpret_cast<CUuserObject>(number);
    }

    ObjectTable objects{100};
    UserObjectBook book{objects};
    std::vector<std::uint64_t> offered;
};

const auto kGraph = reinterpret_cast<CUgraph>(std::uintptr_t{0x100});
const auto kClone = reinterpret_cast<CUgraph>(std::uintptr_t{0x200});

TEST(UserObjectBook, OffersADestructorOnceAndForgetsTheObject) {
    Books books;
    const UserObjectBook::Made made = books.add(1);
    EXPECT_FALSE(books.book.release(Books::native(1), 2)) << "more than there are";
    EXPECT_TRUE(books.book.release(Books::native(1), 1));
    made.run(made.argument);
    EXPECT_EQ(books.offered, std::vector<std::uint64_t>{1});
    EXPECT_FALSE(books.objects.contains(Books::handle(1)));
    EXPECT_TRUE(books.book.of_guest().empty());
}

TEST(UserObjectBook, WhatComesWhileTheProcessIsFrozenIsOfferedByWhoeverGoesOn) {
    Books books;
    const UserObjectBook::Made made = books.add(1);
    EXPECT_TRUE(books.book.release(Books::native(1), 1));
    books.book.shut();
    made.run(made.argument);
    EXPECT_TRUE(books.offered.empty());
    ASSERT_EQ(books.book.of_guest().size(), 1U) << "the other side makes it again, and ends it";
    EXPECT_EQ(books.book.of_guest()[0].count, 0U);
    books.book.open();
    EXPECT_EQ(books.offered, std::vector<std::uint64_t>{1});
}

TEST(UserObjectBook, ClonesHoldWhatTheirGraphsHold) {
    Books books;
    (void)books.add(1);
    books.book.retain(kGraph, Books::native(1), 2);
    books.book.note_clone(kGraph, kClone);
    EXPECT_FALSE(books.book.release(kGraph, Books::native(1), 3));
    EXPECT_TRUE(books.book.release(kGraph, Books::native(1), 1));
    ASSERT_EQ(books.book.of_graph(kGraph).size(), 1U);
    EXPECT_EQ(books.book.of_graph(kGraph)[0].count, 1U);
    EXPECT_EQ(books.book.of_graph(kClone)[0].count, 2U);
    books.book.forget_graph(kClone);
    EXPECT_TRUE(books.book.of_graph(kClone).empty());
}

TEST(UserObjectBook, ASilencedObjectsDestructorIsNotThatOfTheNextUnderItsHandle) {
    Books books;
    const UserObjectBook::Made old = books.add(1);
    EXPECT_EQ(books.book.silence(Books::handle(1)), 1U);
    EXPECT_TRUE(books.objects.erase(Books::handle(1)));
    const UserObjectBook::Made made = books.add(1);
    old.run(old.argument);
    EXPECT_TRUE(books.offered.empty());
    made.run(made.argument);
    EXPECT_EQ(books.offered, std::vector<std::uint64_t>{1});
}

}  // namespace
}  // namespace gantry::worker
