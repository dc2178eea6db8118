// Who may take a VM's session: nobody without its current ticket, nobody but where libvirt migrates
// the VM to, and nobody before that migration has stopped it.
#include <gtest/gtest.h>

#include <algorithm>

#include "migration/engine/source_machine.h"

namespace gantry::engine {
namespace {

constexpr MigrationId kTicketMove{1, 2};
constexpr MigrationId kOtherId{3, 4};

Ticket ticket_of(unsigned char digit) {
    Ticket::Bytes bytes{};
    bytes.fill(std::byte{digit});
    return Ticket(bytes);
}

class Ownership : public testing::Test {
protected:
    void SetUp() override {
        ASSERT_TRUE(renews(step(source_event::Opened{})));
        step(source_event::TicketStands{ticket_of(1)});
    }

    SourceActions step(const SourceEvent& event) {
        now_ += Duration{1'000};
        return machine_.step(event, now_);
    }
    SourceActions receive(MessageBody body, MigrationId id = kTicketMove,
                          const char* peer = "hostb") {
        return step(source_event::Received{{id, std::move(body)}, {}, peer});
    }
    SourceActions report(DomainState domain, JobState job, StopCause cause = StopCause::kUnknown) {
        return step(source_event::Domain{{domain, job, cause}});
    }
    template <typename A>
    static bool has(const SourceActions& actions) {
        return std::any_of(actions.begin(), actions.end(),
                           [](const SourceAction& one) { return std::holds_alternative<A>(one); });
    }
    static bool renews(const SourceActions& actions) { return has<action::RenewTicket>(actions); }
    static bool begins(const SourceActions& actions) { return has<action::Describe>(actions); }
    static bool grants(const SourceActions& actions) { return has<action::PersistGrant>(actions); }
    /// The reason that some host is told; "" when none is refused.
    static std::string refusal(const SourceActions& actions) {
        for (const SourceAction& one : actions) {
            const auto* sent = std::get_if<action::Send>(&one);
            if (sent == nullptr) {
                continue;
            }
            if (const auto* refused = std::get_if<MsgRefused>(&sent->message.body)) {
                return refused->findings.at(0).reason;
            }
            if (const auto* refused = std::get_if<MsgGrantRefused>(&sent->message.body)) {
                return refused->reason;
            }
            if (const auto* abort = std::get_if<MsgAbort>(&sent->message.body)) {
                return abort->reason;
            }
        }
        return "";
    }

    SourceActions prepare(const Ticket& ticket, MigrationId id = kTicketMove,
                          const char* peer = "hostb") {
        TargetCapabilities target;
        target.gpu_name = "gpu";
        target.cc = {9, 0};
        return receive(MsgPrepare{kEngineProtocolVersion, "vm", target, ticket}, id, peer);
    }
    void to_precopy(MigrationId id = kTicketMove) {
        prepare(ticket_of(1), id);
        ASSERT_TRUE(begins(report(DomainState::kRunning, JobState::kOutgoing)));
        step(source_event::Described{});
        receive(MsgReady{}, id);
        step(source_event::PrecopyBegun{});
        step(source_event::RoundSent{1, {}});
        receive(MsgRoundAck{1}, id);
        ASSERT_EQ(machine_.state(), SourceState::kPrecopy);
    }
    /// `stop`: how the source hears that the guest does not run here any more.
    void to_frozen(const SourceEvent& stop) {
        to_precopy();
        step(stop);
        finish_freeze();
    }
    void finish_freeze() {
        ASSERT_EQ(machine_.state(), SourceState::kFreezing);
        step(source_event::Frozen{kToken});
        step(source_event::RoundSent{2, {}});
        step(source_event::CompleteSent{kToken});
        ASSERT_EQ(machine_.state(), SourceState::kFrozen);
    }
    SourceActions ask(const Ticket& ticket, const char* peer = "hostb") {
        return receive(MsgGrantRequest{kToken, {8}, ArrivalEvidence::kGuestResumed, ticket},
                       kTicketMove, peer);
    }

    static constexpr FreezeToken kToken{kTicketMove, 1};
    TimePoint now_{};
    SourceMachine machine_{"vm", Epoch{7}, Settings{}};
};

TEST_F(Ownership, NothingBeginsWithoutTheCurrentTicket) {
    for (const Ticket& ticket : {Ticket{}, ticket_of(2)}) {
        const SourceActions answer = prepare(ticket);
        EXPECT_EQ(refusal(answer), "peer.ticket");
        EXPECT_FALSE(begins(answer));
        EXPECT_FALSE(begins(report(DomainState::kRunning, JobState::kOutgoing)));
    }
    EXPECT_TRUE(machine_.serves());
}

TEST_F(Ownership, NoneIsAsGoodAsNoneWhereNoTicketStandsYet) {
    machine_ = SourceMachine{"vm", Epoch{7}, Settings{}};
    EXPECT_EQ(refusal(prepare(Ticket{})), "peer.ticket");
    EXPECT_FALSE(begins(report(DomainState::kRunning, JobState::kOutgoing)));
}

TEST_F(Ownership, NothingBeginsUnlessLibvirtMigratesTheVmAway) {
    struct Case {
        DomainState domain;
        JobState job;
        StopCause cause;
    };
    for (const Case& one : {Case{DomainState::kRunning, JobState::kNone, StopCause::kUnknown},
                            Case{DomainState::kPaused, JobState::kNone, StopCause::kOther},
                            Case{DomainState::kPaused, JobState::kIncoming, StopCause::kOther},
                            Case{DomainState::kAbsent, JobState::kNone, StopCause::kOther}}) {
        EXPECT_TRUE(has<action::QueryDomain>(prepare(ticket_of(1))));
        const SourceActions first = report(one.domain, one.job, one.cause);
        EXPECT_EQ(refusal(first), "") << "it may be as old as another question";
        EXPECT_TRUE(has<action::QueryDomain>(first));
        const SourceActions second = report(one.domain, one.job, one.cause);
        EXPECT_EQ(refusal(second), "migration.no_outgoing_job");
        EXPECT_FALSE(begins(first) || begins(second));
    }
    prepare(ticket_of(1));
    EXPECT_TRUE(begins(report(DomainState::kRunning, JobState::kOutgoing)))
        << "and what was refused has not used the ticket";
}

TEST_F(Ownership, LibvirtsSilenceDecidesNothing) {
    prepare(ticket_of(1));
    for (int i = 0; i < 5; ++i) {
        const SourceActions silent = report(DomainState::kUnknown, JobState::kUnknown);
        EXPECT_EQ(refusal(silent), "");
        EXPECT_FALSE(begins(silent));
        EXPECT_TRUE(has<action::QueryDomain>(prepare(ticket_of(1)))) << "asked again";
    }
    EXPECT_TRUE(begins(report(DomainState::kRunning, JobState::kOutgoing)));
}

/// An Abort would make it begin again every two seconds, for as long as libvirt is silent.
TEST_F(Ownership, WhoAsksWhileLibvirtIsSilentWaitsInOneAttempt) {
    prepare(ticket_of(1));
    report(DomainState::kUnknown, JobState::kUnknown);
    EXPECT_EQ(refusal(receive(MsgAlive{})), "");
    EXPECT_EQ(refusal(receive(MsgAlive{}, kOtherId)), "migration.unknown") << "nobody has asked so";
    prepare(ticket_of(1));
    EXPECT_TRUE(begins(report(DomainState::kAbsent, JobState::kNone, StopCause::kMigration)));
}

TEST_F(Ownership, WhoAsksWhileTheTicketIsRenewedWaitsInOneAttempt) {
    machine_ = SourceMachine{"vm", Epoch{7}, Settings{}};
    ASSERT_TRUE(renews(step(source_event::Opened{})));
    EXPECT_EQ(refusal(prepare(ticket_of(1))), "");
    EXPECT_EQ(refusal(receive(MsgAlive{})), "");
}

/// libvirt moved the guest on, or back, before its session had followed it.
TEST_F(Ownership, OnlyWhoeverHasTheGuestMayHaveASessionThatWasLeftBehind) {
    to_frozen(source_event::GuestGone{});
    receive(MsgAbort{"migration.withdrawn", ""});
    step(source_event::Frozen{{kTicketMove, 2}});
    ASSERT_EQ(machine_.state(), SourceState::kHolding);
    EXPECT_EQ(refusal(prepare(ticket_of(1), kOtherId, "hostc")), "migration.other_target");
    EXPECT_EQ(refusal(prepare(ticket_of(1), kOtherId, "hosta")), "migration.other_target")
        << "this host's own gantryd is another one, too";
    EXPECT_FALSE(begins(report(DomainState::kAbsent, JobState::kNone, StopCause::kMigration)));
    constexpr MigrationId kSecond{5, 6};
    prepare(ticket_of(1), kSecond);
    EXPECT_TRUE(begins(report(DomainState::kAbsent, JobState::kNone, StopCause::kMigration)));
    EXPECT_EQ(machine_.peer(), "hostb");
}

TEST_F(Ownership, WhoAskedBeforeTheMigrationBeganHasNotAskedForIt) {
    prepare(ticket_of(1), kOtherId, "hostc");
    report(DomainState::kUnknown, JobState::kUnknown);
    now_ += Duration{3'000'000};
    EXPECT_FALSE(begins(report(DomainState::kRunning, JobState::kOutgoing)));
    prepare(ticket_of(1));
    EXPECT_TRUE(begins(report(DomainState::kRunning, JobState::kOutgoing)));
    EXPECT_EQ(machine_.peer(), "hostb");
}

TEST_F(Ownership, AGuestThatAMigrationHasTakenAwayIsFollowed) {
    for (const SourceEvent& how :
         {SourceEvent{source_event::GuestGone{}},
          SourceEvent{
              source_event::Domain{{DomainState::kAbsent, JobState::kNone, StopCause::kMigration}}},
          SourceEvent{source_event::Domain{
              {DomainState::kPaused, JobState::kNone, StopCause::kMigration}}}}) {
        machine_ = SourceMachine{"vm", Epoch{7}, Settings{}};
        SetUp();
        step(how);
        prepare(ticket_of(1));
        EXPECT_TRUE(begins(report(DomainState::kAbsent, JobState::kNone)));
    }
}

TEST_F(Ownership, AnotherTargetIsRefusedAndTheOneUnderWayGoesOn) {
    to_precopy();
    const SourceActions other = prepare(ticket_of(1), kOtherId, "hostc");
    EXPECT_EQ(refusal(other), "migration.other_target");
    EXPECT_FALSE(begins(other));
    EXPECT_FALSE(begins(report(DomainState::kRunning, JobState::kOutgoing)));
    EXPECT_EQ(machine_.migration(), kTicketMove);
    EXPECT_EQ(machine_.peer(), "hostb");
    // Nor by the name of the migration under way.
    EXPECT_TRUE(receive(MsgAbort{"theft", ""}, kTicketMove, "hostc").empty());
    EXPECT_TRUE(receive(MsgFreezeRequest{{}, ticket_of(1)}, kTicketMove, "hostc").empty());
    EXPECT_TRUE(prepare(ticket_of(1), kTicketMove, "hostc").empty());
    EXPECT_EQ(machine_.state(), SourceState::kPrecopy);
    EXPECT_TRUE(has<action::Freeze>(step(source_event::GuestSuspended{})));
}

TEST_F(Ownership, WhoAsksFirstIsNotPushedAsideWhileLibvirtIsAsked) {
    prepare(ticket_of(1));
    EXPECT_EQ(refusal(prepare(ticket_of(1), kOtherId, "hostc")), "migration.other_target");
    report(DomainState::kRunning, JobState::kOutgoing);
    EXPECT_EQ(machine_.peer(), "hostb");
}

TEST_F(Ownership, TheSameTargetMayTryAgainWithinItsJob) {
    to_precopy();
    receive(MsgAbort{"migration.withdrawn", ""});
    EXPECT_EQ(refusal(prepare(ticket_of(1), kOtherId, "hostc")), "migration.other_target")
        << "the ticket is used";
    EXPECT_TRUE(has<action::QueryDomain>(prepare(ticket_of(1), kOtherId)));
    EXPECT_TRUE(begins(report(DomainState::kRunning, JobState::kOutgoing)));
}

TEST_F(Ownership, ATicketIsRenewedOnceTheJobIsOverAndTheOldOneIsWorthNothing) {
    to_precopy();
    EXPECT_TRUE(has<action::QueryDomain>(step(source_event::JobFailed{})));
    EXPECT_FALSE(renews(report(DomainState::kRunning, JobState::kOutgoing)))
        << "libvirt lets nobody write yet";
    now_ = machine_.next_deadline().value();
    EXPECT_TRUE(has<action::QueryDomain>(machine_.step(source_event::Timer{}, now_)));
    EXPECT_TRUE(renews(report(DomainState::kRunning, JobState::kNone)));
    EXPECT_FALSE(renews(report(DomainState::kRunning, JobState::kNone))) << "once";
    EXPECT_EQ(refusal(prepare(ticket_of(1), kOtherId)), "") << "which of them it is, is not known";
    step(source_event::TicketStands{ticket_of(5)});
    EXPECT_EQ(refusal(prepare(ticket_of(1), kOtherId)), "peer.ticket") << "a replay";
    prepare(ticket_of(5), kOtherId, "hostc");
    EXPECT_TRUE(begins(report(DomainState::kRunning, JobState::kOutgoing)));
}

TEST_F(Ownership, ATicketThatCouldNotBeWrittenIsTriedAgain) {
    to_precopy();
    step(source_event::JobFailed{});
    ASSERT_TRUE(renews(report(DomainState::kRunning, JobState::kNone)));
    step(source_event::TicketFailed{});
    prepare(ticket_of(1), kOtherId);
    EXPECT_TRUE(begins(report(DomainState::kRunning, JobState::kOutgoing)))
        << "the old one stands, for who has it";
    step(source_event::JobFailed{});
    EXPECT_TRUE(renews(report(DomainState::kRunning, JobState::kNone)));
}

TEST_F(Ownership, GrantedWhenTheMigrationHasStoppedTheGuest) {
    for (const SourceEvent& stop :
         {SourceEvent{source_event::GuestSuspended{}}, SourceEvent{source_event::GuestGone{}},
          SourceEvent{source_event::GuestPreSwitchover{}},
          SourceEvent{source_event::Domain{
              {DomainState::kAbsent, JobState::kNone, StopCause::kMigration}}}}) {
        machine_ = SourceMachine{"vm", Epoch{7}, Settings{}};
        SetUp();
        to_frozen(stop);
        const SourceActions answer = ask(ticket_of(1));
        ASSERT_TRUE(grants(answer)) << stop.index();
    }
}

TEST_F(Ownership, NoGrantWithoutTheTicketOrToAnotherHost) {
    to_frozen(source_event::GuestSuspended{});
    EXPECT_EQ(refusal(ask(Ticket{})), "peer.ticket");
    EXPECT_EQ(refusal(ask(ticket_of(2))), "peer.ticket");
    EXPECT_FALSE(grants(ask(ticket_of(1), "hostc")));
    // In its own name, for the state that was frozen for another.
    const SourceActions other =
        receive(MsgGrantRequest{kToken, {8}, ArrivalEvidence::kGuestResumed, ticket_of(1)},
                kOtherId, "hostc");
    EXPECT_EQ(refusal(other), "migration.other_target");
    EXPECT_TRUE(grants(ask(ticket_of(1))));
}

TEST_F(Ownership, AnOperatorsPauseAloneIsNoMigration) {
    to_precopy();
    EXPECT_TRUE(has<action::QueryDomain>(receive(MsgFreezeRequest{{}, ticket_of(1)})));
    const SourceActions paused = report(DomainState::kPaused, JobState::kNone, StopCause::kOther);
    EXPECT_FALSE(has<action::Freeze>(paused));
    EXPECT_EQ(refusal(paused), "migration.no_outgoing_job");
    EXPECT_TRUE(machine_.serves());
}

TEST_F(Ownership, AFreezeIsNotAskedForWithoutTheTicket) {
    to_precopy();
    const SourceActions answer = receive(MsgFreezeRequest{{}, ticket_of(2)});
    EXPECT_EQ(refusal(answer), "peer.ticket");
    EXPECT_FALSE(has<action::QueryDomain>(answer));
}

TEST_F(Ownership, AGuestThatWasPausedBeforeItMovedIsGrantedOnlyWhenItIsGone) {
    to_precopy();
    receive(MsgFreezeRequest{ArrivalEvidence::kPausedArrival, ticket_of(1)});
    const SourceActions paused =
        report(DomainState::kPaused, JobState::kOutgoing, StopCause::kOther);
    ASSERT_TRUE(has<action::Freeze>(paused)) << "its migration is under way";
    finish_freeze();
    const SourceActions early = ask(ticket_of(1));
    EXPECT_EQ(refusal(early), "migration.no_outgoing_job");
    EXPECT_TRUE(has<action::QueryDomain>(early));
    report(DomainState::kPaused, JobState::kNone, StopCause::kOther);
    EXPECT_FALSE(grants(ask(ticket_of(1)))) << "paused by an operator, whatever the target says";
    report(DomainState::kAbsent, JobState::kNone, StopCause::kMigration);
    EXPECT_TRUE(grants(ask(ticket_of(1))));
}

TEST_F(Ownership, ASaveIsNoMigration) {
    // It passes through the same states of QEMU; its job is another.
    step(source_event::GuestPreSwitchover{});
    prepare(ticket_of(1));
    report(DomainState::kPaused, JobState::kNone, StopCause::kOther);
    EXPECT_EQ(refusal(report(DomainState::kPaused, JobState::kNone, StopCause::kOther)),
              "migration.no_outgoing_job");
}

TEST_F(Ownership, ARestartKnowsTheTicketAndNeedsNobodysName) {
    source_event::Restarted restarted;
    restarted.record = {Epoch{7}, false, {}, {}, {}};
    restarted.ticket = ticket_of(1);
    restarted.frozen = kToken;
    machine_ = SourceMachine{"vm", Epoch{7}, Settings{}};
    step(restarted);
    report(DomainState::kPaused, JobState::kOutgoing, StopCause::kMigration);
    EXPECT_EQ(refusal(ask(ticket_of(2))), "peer.ticket");
    const SourceActions answer = ask(ticket_of(1));
    ASSERT_TRUE(grants(answer));
    step(source_event::GrantDurable{});
    EXPECT_EQ(machine_.peer(), "hostb") << "from here on it is one host's";
    EXPECT_TRUE(ask(ticket_of(1), "hostc").empty());
}

TEST_F(Ownership, ASessionThatWasStampedByAnOlderReleaseGetsATicket) {
    machine_ = SourceMachine{"vm", Epoch{7}, Settings{}};
    source_event::Restarted restarted;
    restarted.record = {Epoch{7}, false, {}, {}, {}};
    EXPECT_TRUE(has<action::QueryDomain>(step(restarted)));
    EXPECT_TRUE(renews(report(DomainState::kRunning, JobState::kNone)));
}

TEST_F(Ownership, APeerOfAnotherReleaseIsToldToUpgrade) {
    const SourceActions answer =
        receive(MsgPrepare{kEngineProtocolVersion - 1, "vm", {}, Ticket{}});
    EXPECT_EQ(refusal(answer), "protocol.version");
}

TEST(ATicket, IsComparedByAllOfItsDigitsAndNoneIsNobodys) {
    const Ticket one = ticket_of(0xAB);
    for (std::size_t i = 0; i < Ticket::kBytes; ++i) {
        Ticket::Bytes bytes{};
        bytes.fill(std::byte{0xAB});
        bytes[i] ^= std::byte{1};
        EXPECT_FALSE(one.is_same(Ticket(bytes))) << i;
    }
    EXPECT_TRUE(one.is_same(ticket_of(0xAB)));
    EXPECT_FALSE(Ticket{}.is_same(Ticket{}));
    EXPECT_FALSE(one.is_same(Ticket{}));
    EXPECT_TRUE(Ticket::parse(one.reveal())->is_same(one));
    for (const char* text :
         {"", "abab", "00000000000000000000000000000000", "abababababababababababababababag"}) {
        EXPECT_FALSE(Ticket::parse(text).has_value()) << text;
    }
}

}  // namespace
}  // namespace gantry::engine
