// Every engine message must survive the way over protobuf unchanged.
#include "migration/transport/message_map.h"

#include <gtest/gtest.h>

namespace gantry::transport {
namespace {

constexpr engine::MigrationId kMigration{11, 22};
constexpr engine::FreezeToken kToken{kMigration, 3};

/// There and back, through bytes.
control::EngineMessage wire(const engine::MessageBody& body) {
    const auto out = to_proto(engine::Message{kMigration, body});
    control::EngineMessage in;
    EXPECT_TRUE(in.ParseFromString(out.SerializeAsString()));
    return in;
}

TEST(MessageMap, EveryBodyKeepsItsKindAndBytes) {
    const std::vector<engine::MessageBody> bodies = {
        engine::MsgPrepare{},
        engine::MsgReady{},
        engine::MsgRoundAck{5},
        engine::MsgRoundLost{6, "why"},
        engine::MsgFreezeRequest{engine::ArrivalEvidence::kGuestCalled},
        engine::MsgVerified{kToken},
        engine::MsgVerifyFailed{kToken, "digest"},
        engine::MsgGrantRequest{kToken, Epoch{8}, engine::ArrivalEvidence::kPausedArrival},
        engine::MsgActivated{Epoch{9}},
        engine::MsgGrantReturned{Epoch{9}},
        engine::MsgOffer{},
        engine::MsgRefused{},
        engine::MsgRoundEnd{4, 17},
        engine::MsgConverged{std::chrono::microseconds{1500}, 64},
        engine::MsgComplete{kToken, 4, {{{257}, "graph", {}}}},
        engine::MsgThawed{kToken},
        engine::MsgGrant{kToken, Epoch{2}},
        engine::MsgGrantRefused{"grant.epoch", "text", true},
        engine::MsgReleased{Epoch{2}},
        engine::MsgAbort{"a.b", "text"},
        engine::MsgAlive{1ULL << 33}};
    ASSERT_EQ(bodies.size(), std::variant_size_v<engine::MessageBody>) << "one of each";
    for (const engine::MessageBody& body : bodies) {
        const auto back = from_proto(wire(body));
        ASSERT_TRUE(back.ok()) << back.error().text;
        EXPECT_EQ(back->migration, kMigration);
        EXPECT_EQ(back->body.index(), body.index());
        EXPECT_EQ(wire(back->body).SerializeAsString(), wire(body).SerializeAsString());
    }
}

TEST(MessageMap, AHeartbeatThatTellsNothingIsNotTakenForOneOfNothingLeft) {
    const auto back = from_proto(wire(engine::MsgAlive{}));
    ASSERT_TRUE(back.ok());
    EXPECT_FALSE(std::get<engine::MsgAlive>(back->body).remaining_bytes);
}

TEST(MessageMap, NeedsAndCapabilitiesKeepTheirFields) {
    engine::SessionNeeds needs;
    needs.session_id = "s";
    needs.parts = {{{257}, "app", 42, 1 << 20, 4096, 8192, 99, 7777}};
    needs.memory_quota_bytes = 77;
    needs.cc_min = {9, 0};
    needs.profile = engine::ProfileKind::kSoftOnly;
    needs.modules = {
        {{257}, "ab", "kernel", {{{9, 0}, engine::CodeScope::kFamily, true, 90}}, true}};
    needs.attributes = {{97, "shared", -5}};
    needs.blocking = {{{257}, "ipc.memory", "2"}};
    const engine::SessionNeeds back = from_proto(to_proto(needs));
    EXPECT_EQ(to_proto(back).SerializeAsString(), to_proto(needs).SerializeAsString());
    EXPECT_EQ(back.modules.at(0).code.at(0).scope, engine::CodeScope::kFamily);
    EXPECT_EQ(back.attributes.at(0).value_min, -5);
    EXPECT_EQ(back.parts.at(0).table_hash, 99U);
    EXPECT_EQ(back.parts.at(0).beside_bytes, 7777U);
    engine::TargetCapabilities target;
    target.gpu_name = "x";
    target.table_hash = 98;
    target.cc = {13, 0};
    target.attributes = {{1, 1024}, {2, -1}};
    const engine::TargetCapabilities target_back = from_proto(to_proto(target));
    EXPECT_EQ(target_back.cc, target.cc);
    EXPECT_EQ(target_back.attributes.size(), 2U);
}

TEST(MessageMap, TicketsCrossWholeAndWhatIsNoneIsNone) {
    const Ticket ticket = *Ticket::parse("000102030405060708090a0b0c0d0e0f");
    const auto back = [&](const engine::MessageBody& body) { return from_proto(wire(body))->body; };
    engine::MsgPrepare prepare;
    prepare.ticket = ticket;
    EXPECT_TRUE(std::get<engine::MsgPrepare>(back(prepare)).ticket.is_same(ticket));
    engine::MsgFreezeRequest freeze{engine::ArrivalEvidence::kGuestCalled, ticket};
    EXPECT_TRUE(std::get<engine::MsgFreezeRequest>(back(freeze)).ticket.is_same(ticket));
    engine::MsgGrantRequest grant{kToken, Epoch{8}, engine::ArrivalEvidence::kGuestCalled, ticket};
    EXPECT_TRUE(std::get<engine::MsgGrantRequest>(back(grant)).ticket.is_same(ticket));
    control::EngineMessage strange = wire(prepare);
    for (const char* text :
         {"", "00", "x00102030405060708090a0b0c0d0e0f", "000102030405060708090a0b0c0d0e0f00"}) {
        strange.mutable_prepare()->set_ticket(text);
        EXPECT_FALSE(std::get<engine::MsgPrepare>(from_proto(strange)->body).ticket.exists());
    }
}

TEST(MessageMap, UnknownBodyAndEvidenceAreRefused) {
    control::EngineMessage empty;
    EXPECT_EQ(from_proto(empty).error().reason, "stream.message");
    control::EngineMessage strange;
    strange.mutable_freeze_request()->set_evidence(99);
    EXPECT_EQ(from_proto(strange).error().reason, "stream.message");
}

}  // namespace
}  // namespace gantry::transport
