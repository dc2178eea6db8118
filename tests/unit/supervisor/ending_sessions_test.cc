// Who waits for sessions that end, and what begins when they have.
#include "host-daemon/supervisor/registry/ending_sessions.h"

#include <gtest/gtest.h>

#include <future>

#include "host-daemon/supervisor/registry/session_table.h"

namespace gantry::supervisor {
namespace {

const Error kInUse{Code::kResourceExhausted, "gpu.memory.in_use", "all of it is promised"};

bool never(const std::string& /*id*/) { return false; }

libvirt::DomainInfo vm(const std::string& uuid) {
    libvirt::DomainInfo domain;
    domain.uuid = uuid;
    return domain;
}

TEST(EndingSessions, ASessionThatEndsDuringAnAttemptIsNotMissed) {
    EndingSessions ending;
    ending.begin("a");
    ending.begin("b");
    int attempts = 0;
    const auto done = ending.try_while_ending(
        {},
        [&]() -> Result<void> {
            if (++attempts == 1) {
                (void)ending.end("a");
                return kInUse;
            }
            return {};
        },
        never);
    EXPECT_TRUE(done.ok());
    EXPECT_EQ(attempts, 2);
}

TEST(EndingSessions, NothingIsAttemptedAgainWhenNothingEnds) {
    EndingSessions ending;
    int attempts = 0;
    const auto done = ending.try_while_ending(
        {},
        [&]() -> Result<void> {
            ++attempts;
            return kInUse;
        },
        never);
    ASSERT_FALSE(done.ok());
    EXPECT_EQ(done.error().reason, kInUse.reason);
    EXPECT_EQ(attempts, 1);
}

TEST(EndingSessions, AVmIsOpenedWhenTheLastSessionOfItsEarlierLifeHasEnded) {
    EndingSessions ending;
    EXPECT_FALSE(ending.set_next_life(vm("v"))) << "none is ending";
    ending.begin("v");
    ending.begin("v");
    EXPECT_TRUE(ending.set_next_life(vm("v")));
    EXPECT_TRUE(ending.has_next_life("v"));
    EXPECT_FALSE(ending.end("v").has_value());
    const auto next = ending.end("v");
    ASSERT_TRUE(next.has_value());
    EXPECT_EQ(next->uuid, "v");
    EXPECT_FALSE(ending.has_next_life("v"));
}

TEST(EndingSessions, AVmThatHasEndedMeanwhileIsNotOpened) {
    EndingSessions ending;
    ending.begin("v");
    EXPECT_TRUE(ending.set_next_life(vm("v")));
    ending.cancel_next_life("v");
    EXPECT_FALSE(ending.end("v").has_value());
}

TEST(EndingSessions, AGuestIsForgottenWhenItsSessionBeginsToEnd) {
    EndingSessions ending;
    ASSERT_TRUE(ending.add_guest("a", 1000, {1, 1}).ok());
    EXPECT_EQ(ending.user_of("a"), 1000U);
    ending.begin("a");
    EXPECT_EQ(ending.user_of("a"), std::nullopt);
    EXPECT_EQ(ending.soon_free(never), std::set<std::string>{"a"});
    (void)ending.end("a");
    EXPECT_TRUE(ending.soon_free(never).empty());
}

TEST(EndingSessions, WhoWaitsGoesOnWhenASessionHasEndedAndWhenGantrydEnds) {
    EndingSessions ending;
    ending.begin("a");
    ending.begin("b");
    auto waits = std::async(std::launch::async, [&] { ending.await({"a"}); });
    (void)ending.end("a");
    waits.get();
    waits = std::async(std::launch::async, [&] { ending.await({"b"}); });
    ending.end_waits();
    waits.get();
    EXPECT_EQ(ending.soon_free(never), std::set<std::string>{"b"});
}

// As of one that has just ended, which an event of its VM may still name.
TEST(SessionTable, OfASessionThatIsNotHereNothingIsSaid) {
    SessionTable table;
    EXPECT_FALSE(table.is_concerned("gone"));
    EXPECT_FALSE(table.find("gone"));
    EXPECT_EQ(table.arrival("gone"), nullptr);
    EXPECT_FALSE(table.is_pulled("gone", std::chrono::hours{1}));
    EXPECT_FALSE(table.take_attempt_error("gone"));
    EXPECT_FALSE(table.take("gone"));
    bool is_run = false;
    table.if_unknown("gone", [&] { is_run = true; });
    EXPECT_TRUE(is_run);
    EXPECT_TRUE(table.all().here.empty());
    EXPECT_FALSE(table.is_stopping());
}

}  // namespace
}  // namespace gantry::supervisor
