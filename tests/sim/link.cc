// The link between the two gantryds: loses, repeats, delays, reorders, partitions.
#include <algorithm>
#include <variant>

#include "tests/sim/world.h"

namespace gantry::sim {
namespace {

bool goes_to_target(const engine::MessageBody& body) {
    using namespace engine;
    return std::holds_alternative<MsgOffer>(body) || std::holds_alternative<MsgRefused>(body) ||
           std::holds_alternative<MsgRoundEnd>(body) ||
           std::holds_alternative<MsgConverged>(body) ||
           std::holds_alternative<MsgComplete>(body) || std::holds_alternative<MsgThawed>(body) ||
           std::holds_alternative<MsgGrant>(body) ||
           std::holds_alternative<MsgGrantRefused>(body) ||
           std::holds_alternative<MsgReleased>(body);
}

bool goes_both_ways(const engine::MessageBody& body) {
    return std::holds_alternative<engine::MsgAbort>(body) ||
           std::holds_alternative<engine::MsgAlive>(body);
}

}  // namespace

void World::transmit(int to, std::function<void()> deliver_it) {
    if (partitioned || random.chance(loss)) {
        return;
    }
    const int copies = random.chance(duplication) ? 2 : 1;
    for (int i = 0; i < copies; ++i) {
        const Duration flight = random.chance(slow) ? delay(1'000, 3'000'000) : delay(200, 2'000);
        after(flight, [this, to, deliver_it] {
            if (hosts[to].daemon_up) {
                deliver_it();
            }
        });
    }
}

void World::send(int from, const Message& message) {
    const int to = 1 - from;
    trace("host %d sends %s", from, message_name(message));
    check_sent_grant(from, message);
    const bool is_theft =
        std::find(thefts.begin(), thefts.end(), message.migration) != thefts.end();
    if (nobody_hears || is_theft) {
        return;
    }
    confuse(to, message);
    transmit(to, [this, to, message] { deliver(to, message); });
}

void World::send_bulk(int from, const Bulk& bulk) {
    const int to = 1 - from;
    transmit(to, [this, to, bulk] { carriers->deliver_bulk(*this, to, bulk); });
}

/// What migration/engine/README.md asks of a driver: route by direction; answer a migration that no
/// machine knows with an abort, except where that could go on for ever.
void World::deliver(int to, const Message& message) {
    Host& host = hosts[to];
    const bool is_ours = host.target && host.target->migration() == message.migration &&
                         host.target->state() != engine::TargetState::kDiscarded;
    if (goes_to_target(message.body) || (goes_both_ways(message.body) && is_ours)) {
        if (is_ours) {
            target_step(to, target_event::Received{message});
        } else if (!std::holds_alternative<engine::MsgGrant>(message.body) &&
                   !std::holds_alternative<engine::MsgGrantRefused>(message.body) &&
                   !std::holds_alternative<engine::MsgRefused>(message.body) &&
                   !std::holds_alternative<engine::MsgReleased>(message.body)) {
            send(to, {message.migration,
                      engine::MsgAbort{std::string(engine::kUnknownMigration), "unknown"}});
        }
        return;
    }
    if (!host.source) {
        if (std::holds_alternative<engine::MsgGrantRequest>(message.body) ||
            std::holds_alternative<engine::MsgGrantReturned>(message.body) ||
            std::holds_alternative<engine::MsgAbort>(message.body)) {
            send(to,
                 {message.migration, engine::MsgGrantRefused{"session.unknown", "unknown", true}});
        } else if (!goes_both_ways(message.body)) {
            send(to, {message.migration,
                      engine::MsgAbort{std::string(engine::kUnknownMigration), "unknown"}});
        }
        return;
    }
    if (const auto* ack = std::get_if<engine::MsgRoundAck>(&message.body)) {
        if (host.worker && host.source->migration() == message.migration) {
            for (std::uint64_t& round : host.worker->unacked_round) {
                round = round <= ack->round ? 0 : round;
            }
        }
    }
    source_step(to,
                source_event::Received{message, {random.next(), random.next()}, name_of(1 - to)});
}

}  // namespace gantry::sim
