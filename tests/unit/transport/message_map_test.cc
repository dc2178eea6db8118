// Every engine message must survive the way over protobuf unchanged.
#include "migration/transport/message_map.h"

#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <set>

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

using google::protobuf::FieldDescriptor;

/// What the engine has no place for: it is said in files, not between engines.
bool is_of_files(const FieldDescriptor* field) {
    static const std::set<std::string> names{"PartNeed.channel_index", "PartNeed.generation",
                                             "SessionNeeds.vm_name", "SessionNeeds.vm_uuid"};
    return names.count(field->containing_type()->name() + "." + field->name()) != 0;
}

/// Sets every field, also of messages inside, to a value of its own that is no default. What has
/// few values, as an enum has, is 2.
void fill(google::protobuf::Message* message, std::uint32_t* next) {
    const auto* reflection = message->GetReflection();
    const auto* descriptor = message->GetDescriptor();
    for (int i = 0; i < descriptor->field_count(); ++i) {
        const FieldDescriptor* field = descriptor->field(i);
        if (is_of_files(field)) {
            continue;
        }
        const std::uint32_t value =
            field->name() == "scope" || field->name() == "evidence" ? 2 : ++*next;
        if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
            for (int times = field->is_repeated() && !field->is_map() ? 2 : 1; times > 0; --times) {
                fill(field->is_repeated() ? reflection->AddMessage(message, field)
                                          : reflection->MutableMessage(message, field),
                     next);
            }
            continue;
        }
        ASSERT_FALSE(field->is_repeated()) << field->full_name();
        switch (field->cpp_type()) {
            case FieldDescriptor::CPPTYPE_STRING:
                reflection->SetString(message, field,
                                      field->name() == "ticket"
                                          ? std::string(2 * Ticket::kBytes, 'a')
                                          : "text" + std::to_string(value));
                break;
            case FieldDescriptor::CPPTYPE_BOOL: reflection->SetBool(message, field, true); break;
            case FieldDescriptor::CPPTYPE_UINT32:
                reflection->SetUInt32(message, field, value);
                break;
            case FieldDescriptor::CPPTYPE_UINT64:
                reflection->SetUInt64(message, field, (1ULL << 40) + value);
                break;
            case FieldDescriptor::CPPTYPE_INT64:
                reflection->SetInt64(message, field, -static_cast<std::int64_t>(value));
                break;
            case FieldDescriptor::CPPTYPE_DOUBLE:
                reflection->SetDouble(message, field, value + 0.5);
                break;
            default: FAIL() << "no value for " << field->full_name();
        }
    }
}

/// A field that one of the two directions leaves out comes back as its default.
template <typename Proto>
void expect_all_kept() {
    Proto all;
    std::uint32_t next = 0;
    fill(&all, &next);
    EXPECT_EQ(to_proto(from_proto(all)).DebugString(), all.DebugString());
}

TEST(MessageMap, EveryFieldOfThePreflightsDataIsKept) {
    expect_all_kept<control::SessionNeeds>();
    expect_all_kept<control::TargetCapabilities>();
    expect_all_kept<control::Finding>();
    expect_all_kept<control::MigrationId>();
}

TEST(MessageMap, EveryFieldOfEveryBodyIsKept) {
    const auto* bodies = control::EngineMessage::descriptor()->oneof_decl(0);
    ASSERT_EQ(static_cast<std::size_t>(bodies->field_count()),
              std::variant_size_v<engine::MessageBody>);
    for (int i = 0; i < bodies->field_count(); ++i) {
        control::EngineMessage all;
        std::uint32_t next = 0;
        fill(all.mutable_migration(), &next);
        fill(all.GetReflection()->MutableMessage(&all, bodies->field(i)), &next);
        const auto back = from_proto(all);
        ASSERT_TRUE(back.ok()) << bodies->field(i)->name() << ": " << back.error().text;
        EXPECT_EQ(to_proto(*back).DebugString(), all.DebugString()) << bodies->field(i)->name();
    }
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
