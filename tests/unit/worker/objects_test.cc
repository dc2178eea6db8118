// The table of a guest's handles.
#include "host-daemon/execution/objects/objects.h"

#include <gtest/gtest.h>

namespace gantry::worker {
namespace {

TEST(ObjectTable, ForgetsWithTheParentAndKeepsKindsApart) {
    ObjectTable table(100);
    const std::uint64_t library = cuda::make_handle(HandleKind::kLibrary, 1 << 24);
    const std::uint64_t kernel = cuda::make_handle(HandleKind::kKernel, 1 << 24);
    const std::uint64_t function = cuda::make_handle(HandleKind::kFunction, 1 << 24);
    EXPECT_TRUE(table.insert({library, 11, 0, 0, 0, {}, {}, {}}));
    EXPECT_TRUE(table.insert({kernel, 12, 0, 0, library, {}, {}, {}}));
    EXPECT_TRUE(table.insert({function, 13, 0, 0, kernel, {}, {}, {}}));
    EXPECT_FALSE(table.insert({kernel, 99, 0, 0, 0, {}, {}, {}}));
    EXPECT_FALSE(table.insert({1234, 99, 0, 0, 0, {}, {}, {}}));
    EXPECT_EQ(table.native(kernel, HandleKind::kKernel), 12u);
    EXPECT_EQ(table.native(kernel, HandleKind::kStream), 0u);
    EXPECT_EQ(table.handle_of(13, HandleKind::kFunction), function);
    EXPECT_TRUE(table.erase(library));
    EXPECT_EQ(table.size(), 0u);
    EXPECT_EQ(table.count_kind(HandleKind::kKernel), 0u);
}

TEST(ObjectTable, FindsByTheDriversHandleAsItChanges) {
    ObjectTable table(100);
    const std::uint64_t graph = cuda::make_handle(HandleKind::kGraph, 1 << 24);
    const std::uint64_t other = cuda::make_handle(HandleKind::kGraph, 2 << 24);
    const std::uint64_t node = cuda::make_handle(HandleKind::kGraphNode, 1 << 24);
    const std::uint64_t alias = cuda::make_handle(HandleKind::kGraphNode, 2 << 24);
    EXPECT_TRUE(table.insert({graph, 21, 0, 0, 0, {}, {}, {}}));
    EXPECT_TRUE(table.insert({other, 22, 0, 0, 0, {}, {}, {}}));
    EXPECT_TRUE(table.insert({node, 21, 0, 0, graph, {}, {}, {}}));
    EXPECT_TRUE(table.insert({alias, 21, 0, 0, graph, {}, {}, {}}));
    EXPECT_EQ(table.handle_of(21, HandleKind::kGraph), graph);
    EXPECT_EQ(table.handle_of(21, HandleKind::kGraphNode), node);
    EXPECT_EQ(table.handle_of(21, HandleKind::kGraphExec), 0u);
    table.set_native(node, 23);
    EXPECT_EQ(table.handle_of(21, HandleKind::kGraphNode), alias);
    EXPECT_EQ(table.handle_of(23, HandleKind::kGraphNode), node);
    EXPECT_TRUE(table.erase(alias));
    EXPECT_EQ(table.handle_of(21, HandleKind::kGraphNode), 0u);
    EXPECT_FALSE(table.erase(alias));
    // A child goes with the parent that it has now.
    table.set_parent(node, other);
    EXPECT_TRUE(table.erase(graph));
    EXPECT_EQ(table.handle_of(23, HandleKind::kGraphNode), node);
    EXPECT_TRUE(table.erase(other));
    EXPECT_EQ(table.handle_of(23, HandleKind::kGraphNode), 0u);
    EXPECT_EQ(table.size(), 0u);
}

TEST(ObjectTable, RefusesOneTooMany) {
    ObjectTable table(2);
    for (std::uint64_t i = 1; i <= 3; ++i) {
        EXPECT_EQ(
            table.insert({cuda::make_handle(HandleKind::kEvent, i << 24), i, 0, 0, 0, {}, {}, {}}),
            i <= 2);
    }
}

}  // namespace
}  // namespace gantry::worker
