#include "migration/transport/message_map.h"

#include <algorithm>

namespace gantry::transport {
namespace {

using control::EngineMessage;

control::EngineToken token_to(const engine::FreezeToken& token) {
    control::EngineToken out;
    *out.mutable_migration() = to_proto(token.migration);
    out.set_count(token.count);
    return out;
}

engine::FreezeToken token_from(const control::EngineToken& token) {
    return {from_proto(token.migration()), token.count()};
}

/// One overload per message: writes the body.
struct Writer {
    EngineMessage& out;

    void operator()(const engine::MsgPrepare& m) const {
        out.mutable_prepare()->set_protocol_version(m.protocol_version);
        out.mutable_prepare()->set_session_id(m.session_id);
        *out.mutable_prepare()->mutable_capabilities() = to_proto(m.capabilities);
        out.mutable_prepare()->set_ticket(m.ticket.reveal());
    }
    void operator()(const engine::MsgReady&) const { out.mutable_ready(); }
    void operator()(const engine::MsgRoundAck& m) const {
        out.mutable_round_ack()->set_round(m.round);
    }
    void operator()(const engine::MsgRoundLost& m) const {
        out.mutable_round_lost()->set_round(m.round);
        out.mutable_round_lost()->set_detail(m.detail);
    }
    void operator()(const engine::MsgFreezeRequest& m) const {
        out.mutable_freeze_request()->set_evidence(static_cast<std::uint32_t>(m.evidence));
        out.mutable_freeze_request()->set_ticket(m.ticket.reveal());
    }
    void operator()(const engine::MsgVerified& m) const {
        *out.mutable_verified()->mutable_token() = token_to(m.token);
    }
    void operator()(const engine::MsgVerifyFailed& m) const {
        *out.mutable_verify_failed()->mutable_token() = token_to(m.token);
        out.mutable_verify_failed()->set_detail(m.detail);
    }
    void operator()(const engine::MsgGrantRequest& m) const {
        *out.mutable_grant_request()->mutable_token() = token_to(m.token);
        out.mutable_grant_request()->set_epoch(m.epoch.value);
        out.mutable_grant_request()->set_evidence(static_cast<std::uint32_t>(m.evidence));
        out.mutable_grant_request()->set_ticket(m.ticket.reveal());
    }
    void operator()(const engine::MsgActivated& m) const {
        out.mutable_activated()->set_epoch(m.epoch.value);
    }
    void operator()(const engine::MsgGrantReturned& m) const {
        out.mutable_grant_returned()->set_epoch(m.epoch.value);
    }
    void operator()(const engine::MsgOffer& m) const {
        control::EngineOffer& offer = *out.mutable_offer();
        offer.set_protocol_version(m.protocol_version);
        offer.set_epoch(m.epoch.value);
        offer.set_seed_low(m.seed.low);
        offer.set_seed_high(m.seed.high);
        *offer.mutable_needs() = to_proto(m.needs);
        for (const engine::Finding& warning : m.warnings) {
            *offer.add_warnings() = to_proto(warning);
        }
    }
    void operator()(const engine::MsgRefused& m) const {
        out.mutable_refused();
        for (const engine::Finding& finding : m.findings) {
            *out.mutable_refused()->add_findings() = to_proto(finding);
        }
    }
    void operator()(const engine::MsgRoundEnd& m) const {
        out.mutable_round_end()->set_round(m.round);
        out.mutable_round_end()->set_batch_count(m.batch_count);
    }
    void operator()(const engine::MsgConverged& m) const {
        out.mutable_converged()->set_downtime_estimate_us(
            static_cast<std::uint64_t>(std::max<std::int64_t>(0, m.downtime_estimate.count())));
        out.mutable_converged()->set_remaining_bytes(m.remaining_bytes);
    }
    void operator()(const engine::MsgComplete& m) const {
        control::EngineComplete& complete = *out.mutable_complete();
        *complete.mutable_token() = token_to(m.token);
        complete.set_round(m.round);
        for (const engine::FinalPart& part : m.parts) {
            control::EngineFinalPart& to = *complete.add_parts();
            to.set_part_id(part.part.value);
            to.set_graph(part.graph);
            to.set_block_count(part.digest.block_count);
            to.set_digest_low(part.digest.sum.low);
            to.set_digest_high(part.digest.sum.high);
        }
    }
    void operator()(const engine::MsgThawed& m) const {
        *out.mutable_thawed()->mutable_token() = token_to(m.token);
    }
    void operator()(const engine::MsgGrant& m) const {
        *out.mutable_grant()->mutable_token() = token_to(m.token);
        out.mutable_grant()->set_epoch(m.epoch.value);
    }
    void operator()(const engine::MsgGrantRefused& m) const {
        out.mutable_grant_refused()->set_reason(m.reason);
        out.mutable_grant_refused()->set_text(m.text);
        out.mutable_grant_refused()->set_is_final(m.is_final);
    }
    void operator()(const engine::MsgReleased& m) const {
        out.mutable_released()->set_epoch(m.epoch.value);
    }
    void operator()(const engine::MsgAbort& m) const {
        out.mutable_abort()->set_reason(m.reason);
        out.mutable_abort()->set_text(m.text);
    }
    void operator()(const engine::MsgAlive& m) const {
        control::EngineAlive& alive = *out.mutable_alive();
        if (m.remaining_bytes) {
            alive.set_remaining_bytes(*m.remaining_bytes);
        }
    }
};

/// None for what is no ticket: the machine refuses it by name.
Ticket ticket_from(const std::string& text) { return Ticket::parse(text).value_or(Ticket{}); }

Result<engine::ArrivalEvidence> evidence_from(std::uint32_t value) {
    if (value < 1 || value > static_cast<std::uint32_t>(engine::ArrivalEvidence::kPausedArrival)) {
        return Error{Code::kInvalidArgument, "stream.message",
                     "the peer names evidence " + std::to_string(value) + ", which is unknown"};
    }
    return static_cast<engine::ArrivalEvidence>(value);
}

engine::MsgOffer offer_from(const control::EngineOffer& from) {
    engine::MsgOffer offer;
    offer.protocol_version = from.protocol_version();
    offer.epoch.value = from.epoch();
    offer.seed = {from.seed_low(), from.seed_high()};
    offer.needs = from_proto(from.needs());
    for (const control::Finding& warning : from.warnings()) {
        offer.warnings.push_back(from_proto(warning));
    }
    return offer;
}

engine::MsgComplete complete_from(const control::EngineComplete& from) {
    engine::MsgComplete complete;
    complete.token = token_from(from.token());
    complete.round = from.round();
    for (const control::EngineFinalPart& part : from.parts()) {
        engine::FinalPart to;
        to.part.value = part.part_id();
        to.graph = part.graph();
        to.digest.block_count = part.block_count();
        to.digest.sum = {part.digest_low(), part.digest_high()};
        complete.parts.push_back(std::move(to));
    }
    return complete;
}

engine::MsgRefused refused_from(const control::EngineRefused& from) {
    engine::MsgRefused refused;
    for (const control::Finding& finding : from.findings()) {
        refused.findings.push_back(from_proto(finding));
    }
    return refused;
}

Result<engine::MessageBody> body_from(const EngineMessage& m) {
    switch (m.body_case()) {
        case EngineMessage::kPrepare: {
            engine::MsgPrepare prepare;
            prepare.protocol_version = m.prepare().protocol_version();
            prepare.session_id = m.prepare().session_id();
            prepare.capabilities = from_proto(m.prepare().capabilities());
            prepare.ticket = ticket_from(m.prepare().ticket());
            return engine::MessageBody{std::move(prepare)};
        }
        case EngineMessage::kReady: return engine::MessageBody{engine::MsgReady{}};
        case EngineMessage::kRoundAck:
            return engine::MessageBody{engine::MsgRoundAck{m.round_ack().round()}};
        case EngineMessage::kRoundLost:
            return engine::MessageBody{
                engine::MsgRoundLost{m.round_lost().round(), m.round_lost().detail()}};
        case EngineMessage::kFreezeRequest: {
            GANTRY_ASSIGN(const auto evidence, evidence_from(m.freeze_request().evidence()));
            return engine::MessageBody{
                engine::MsgFreezeRequest{evidence, ticket_from(m.freeze_request().ticket())}};
        }
        case EngineMessage::kVerified:
            return engine::MessageBody{engine::MsgVerified{token_from(m.verified().token())}};
        case EngineMessage::kVerifyFailed:
            return engine::MessageBody{engine::MsgVerifyFailed{
                token_from(m.verify_failed().token()), m.verify_failed().detail()}};
        case EngineMessage::kGrantRequest: {
            GANTRY_ASSIGN(const auto evidence, evidence_from(m.grant_request().evidence()));
            return engine::MessageBody{engine::MsgGrantRequest{
                token_from(m.grant_request().token()), Epoch{m.grant_request().epoch()}, evidence,
                ticket_from(m.grant_request().ticket())}};
        }
        case EngineMessage::kActivated:
            return engine::MessageBody{engine::MsgActivated{Epoch{m.activated().epoch()}}};
        case EngineMessage::kGrantReturned:
            return engine::MessageBody{engine::MsgGrantReturned{Epoch{m.grant_returned().epoch()}}};
        case EngineMessage::kOffer: return engine::MessageBody{offer_from(m.offer())};
        case EngineMessage::kRefused: return engine::MessageBody{refused_from(m.refused())};
        case EngineMessage::kRoundEnd:
            return engine::MessageBody{
                engine::MsgRoundEnd{m.round_end().round(), m.round_end().batch_count()}};
        case EngineMessage::kConverged:
            return engine::MessageBody{engine::MsgConverged{
                std::chrono::microseconds{
                    static_cast<std::int64_t>(m.converged().downtime_estimate_us())},
                m.converged().remaining_bytes()}};
        case EngineMessage::kComplete: return engine::MessageBody{complete_from(m.complete())};
        case EngineMessage::kThawed:
            return engine::MessageBody{engine::MsgThawed{token_from(m.thawed().token())}};
        case EngineMessage::kGrant:
            return engine::MessageBody{
                engine::MsgGrant{token_from(m.grant().token()), Epoch{m.grant().epoch()}}};
        case EngineMessage::kGrantRefused:
            return engine::MessageBody{engine::MsgGrantRefused{m.grant_refused().reason(),
                                                               m.grant_refused().text(),
                                                               m.grant_refused().is_final()}};
        case EngineMessage::kReleased:
            return engine::MessageBody{engine::MsgReleased{Epoch{m.released().epoch()}}};
        case EngineMessage::kAbort:
            return engine::MessageBody{engine::MsgAbort{m.abort().reason(), m.abort().text()}};
        case EngineMessage::kAlive: {
            engine::MsgAlive alive;
            if (m.alive().has_remaining_bytes()) {
                alive.remaining_bytes = m.alive().remaining_bytes();
            }
            return engine::MessageBody{alive};
        }
        case EngineMessage::BODY_NOT_SET: break;
    }
    return Error{Code::kInvalidArgument, "stream.message",
                 "the peer sent a message of a kind that this release does not know"};
}

}  // namespace

control::MigrationId to_proto(engine::MigrationId id) {
    control::MigrationId out;
    out.set_low(id.low);
    out.set_high(id.high);
    return out;
}

engine::MigrationId from_proto(const control::MigrationId& id) { return {id.low(), id.high()}; }

control::EngineMessage to_proto(const engine::Message& message) {
    control::EngineMessage out;
    *out.mutable_migration() = to_proto(message.migration);
    std::visit(Writer{out}, message.body);
    if (message.time.sent_us != 0) {
        out.mutable_time()->set_sent_us(message.time.sent_us);
        if (message.time.least_us) {
            out.mutable_time()->set_least_us(*message.time.least_us);
        }
    }
    return out;
}

Result<engine::Message> from_proto(const control::EngineMessage& message) {
    engine::Message out;
    out.migration = from_proto(message.migration());
    GANTRY_ASSIGN(out.body, body_from(message));
    out.time.sent_us = message.time().sent_us();
    if (message.time().has_least_us()) {
        out.time.least_us = message.time().least_us();
    }
    return out;
}

}  // namespace gantry::transport
