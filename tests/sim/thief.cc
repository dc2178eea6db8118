// A third host with a good certificate of the cluster, which asks for the session whenever it
// likes.
//
// It speaks under its own name, with whatever ticket it knows. What it is answered it is not told:
// what counts is whether the source begins anything for it. It does not race the target that
// libvirt migrates to with that target's own ticket: who reads the source's libvirt while that
// migrates is not kept out by this (proto/decisions/0030-who-may-take-a-session.md).
#include "tests/sim/world.h"

namespace gantry::sim {

Ticket World::draw_ticket() {
    Ticket::Bytes bytes{};
    std::uint64_t word = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        word = i % sizeof word == 0 ? theft.next() : word >> 8;
        bytes[i] = static_cast<std::byte>(word & 0xFF);
    }
    return Ticket(bytes);
}

void World::plan_thief() {
    for (std::int64_t i = theft.between(5, 30); i > 0; --i) {
        const int host = static_cast<int>(theft.between(0, 1));
        at(Duration{theft.between(0, 60'000'000)}, [this, host] { steal(host); });
    }
    for (std::int64_t i = theft.between(-3, 2); i > 0; --i) {
        const int host = static_cast<int>(theft.between(0, 1));
        at(Duration{theft.between(0, 45'000'000)}, [this, host] { suspend(host); });
    }
}

/// `virsh suspend`, and `virsh resume` some time later: no migration.
void World::suspend(int index) {
    Guest& guest = guests[index];
    if (guest.domain != Domain::kRunning || job.active ||
        guests[1 - index].domain != Domain::kAbsent) {
        return;
    }
    trace("virsh suspend on host %d", index);
    guest.domain = Domain::kPaused;
    guest.cause = engine::StopCause::kOther;
    for (int i = 0; i < 3; ++i) {
        after(Duration{theft.between(0, 2'000'000)}, [this, index] { steal(index); });
    }
    after(Duration{theft.between(500'000, 3'000'000)}, [this, index] {
        if (guests[index].domain == Domain::kPaused && !job.active) {
            guests[index].domain = Domain::kRunning;
            guest_event_source(index, source_event::GuestResumed{});
        }
    });
}

void World::steal(int index) {
    Host& host = hosts[index];
    if (!host.daemon_up || !host.source) {
        return;
    }
    auto knowledge = static_cast<Knowledge>(theft.between(0, 2));
    const bool is_going = job.active && job.from == index;
    const bool is_at_home = guests[index].domain == Domain::kRunning ||
                            guests[index].cause == engine::StopCause::kOther;
    if (knowledge == Knowledge::kCurrent && (is_going || !is_at_home)) {
        knowledge = Knowledge::kNothing;
    }
    Ticket ticket;
    switch (knowledge) {
        case Knowledge::kNothing: ticket = theft.chance(0.8) ? draw_ticket() : Ticket{}; break;
        case Knowledge::kOld:
            if (tickets.size() > 1) {
                ticket = tickets[static_cast<std::size_t>(
                    theft.between(0, static_cast<std::int64_t>(tickets.size()) - 2))];
            }
            break;
        case Knowledge::kCurrent:
            ticket = guests[index].stamp;
            theft_ends = now + Duration{2'200'000};
            break;
    }
    if (is_going && ticket.is_same(outgoing[index]->ticket)) {
        return;
    }
    engine::TargetCapabilities capabilities;
    capabilities.gpu_name = "sim";
    capabilities.cc = {9, 0};
    capabilities.memory_total_bytes = capabilities.memory_free_bytes = 1 << 24;
    engine::MigrationId id{theft.next(), theft.next()};
    const std::optional<engine::MigrationId> under_way = host.source->migration();
    if (theft.chance(0.2) && under_way) {
        id = *under_way;  // which nobody told it
    } else {
        thefts.push_back(id);
    }
    const engine::FreezeToken frozen =
        host.worker && host.worker->frozen ? *host.worker->frozen : engine::FreezeToken{id, 1};
    std::vector<engine::MessageBody> bodies{
        engine::MsgPrepare{engine::kEngineProtocolVersion, "vm", capabilities, ticket},
        engine::MsgPrepare{engine::kEngineProtocolVersion, "vm", capabilities, ticket},
        engine::MsgFreezeRequest{engine::ArrivalEvidence::kGuestResumed, ticket},
        engine::MsgGrantRequest{frozen, {}, engine::ArrivalEvidence::kGuestResumed, ticket},
        engine::MsgAbort{"theft", "It wants the others to end."}};
    ++verdict.theft_count;
    for (std::size_t i = 0; i < bodies.size(); ++i) {
        after(Duration{static_cast<std::int64_t>(i) * theft.between(0, 20'000)},
              [this, index, ticket, message = Message{id, bodies[i]}] {
                  if (job.active && job.from == index && ticket.is_same(outgoing[index]->ticket)) {
                      return;
                  }
                  nobody_hears = true;
                  source_step(
                      index, source_event::Received{message, {theft.next(), theft.next()}, kThief});
                  nobody_hears = false;
              });
    }
}

/// A migration that has just begun at the source: libvirt must be migrating the guest to that host,
/// or have done so.
void World::check_begin(int index, bool was_moving) {
    const Host& host = hosts[index];
    if (was_moving || !host.source || !host.source->migration()) {
        return;
    }
    constexpr Duration kNewsAge{50'000};  // what libvirt said, and how long that took
    const std::optional<Outgoing>& move = outgoing[index];
    if (!move || host.source->peer() != move->to) {
        violate("a migration begins for " + host.source->peer() +
                ", which libvirt migrates nothing to");
    } else if (move->ended && now > *move->ended + kNewsAge &&
               guests[index].domain == Domain::kRunning) {
        violate("a migration begins although libvirt has none of the guest under way");
    }
}

/// Who a grant that is about to be written goes to.
void World::check_taker(int index, const engine::DurableRecord& record) {
    const std::optional<Outgoing>& move = outgoing[index];
    if (!move || record.granted_peer != move->to) {
        violate("a grant goes to " + record.granted_peer + ", which libvirt migrates nothing to");
    } else if (!move->has_stopped_guest) {
        violate("a grant without an outgoing migration that has stopped the guest");
    }
}

}  // namespace gantry::sim
