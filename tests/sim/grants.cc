// What holds for every grant, and a peer that asks for grants that it must not get.
//
// The truth about a grant is taken from the worker and the disk of the host; of the source machine
// that gives it, only which migration is under way.
#include <algorithm>
#include <variant>

#include "tests/sim/world.h"

namespace gantry::sim {
namespace {

const engine::MsgGrantRequest* grant_request(const engine::SourceEvent& event) {
    const auto* received = std::get_if<source_event::Received>(&event);
    return received == nullptr ? nullptr
                               : std::get_if<engine::MsgGrantRequest>(&received->message.body);
}

}  // namespace

/// The answer to one request, before it is carried out.
void World::check_answer(int index, const engine::SourceEvent& event,
                         const engine::SourceActions& actions) {
    const engine::MsgGrantRequest* asked = grant_request(event);
    if (asked == nullptr) {
        return;
    }
    const auto& from = std::get<source_event::Received>(event).message.migration;
    for (const engine::SourceAction& one : actions) {
        const auto* persist = std::get_if<action::PersistGrant>(&one);
        if (persist == nullptr || !persist->record.granted) {
            continue;
        }
        const engine::DurableRecord& record = persist->record;
        if (record.granted_migration != from || record.granted_token != asked->token) {
            violate("a grant goes to another migration or for another state than was asked for");
        }
        const std::optional<Outgoing>& move = outgoing[index];
        if (!move || !asked->ticket.is_same(move->ticket)) {
            violate("a grant without the ticket that libvirt's migration carries");
        }
        if (asked->epoch.value != 0 && asked->epoch.value != record.epoch.value + 1) {
            violate("a grant of epoch " + std::to_string(record.epoch.value + 1) +
                    " answers a request for epoch " + std::to_string(asked->epoch.value));
        }
    }
}

/// A grant that is about to be written.
void World::check_grant(int index, const engine::DurableRecord& record) {
    if (!record.granted) {
        return;
    }
    check_taker(index, record);
    const Worker* worker = hosts[index].worker.get();
    if (record.granted_migration != record.granted_token.migration) {
        violate("a grant goes to another migration than the one that froze the session");
    }
    if (worker != nullptr && worker->serves_role && !worker->dead &&
        worker->frozen != record.granted_token) {
        violate("a grant is for another state than the one that is frozen");
    }
    if (worker != nullptr && worker->serves_role && !worker->dead &&
        worker->epoch != record.epoch) {
        violate("a grant is of another epoch than the one that is owned");
    }
    const auto under_way = hosts[index].source->migration();
    if (under_way && *under_way != record.granted_migration) {
        violate("a grant goes to another migration than the one under way");
    }
    if (std::find(returned.begin(), returned.end(), record.granted_migration) != returned.end()) {
        violate("a migration that gave its grant back gets another");
    }
}

/// A grant that goes out must be the one on the disk.
void World::check_sent_grant(int index, const Message& message) {
    const auto* grant = std::get_if<engine::MsgGrant>(&message.body);
    if (grant == nullptr) {
        return;
    }
    const std::optional<engine::DurableRecord>& disk = hosts[index].disk;
    if (!disk || !disk->granted || disk->granted_migration != message.migration ||
        disk->granted_token != grant->token || disk->epoch.value + 1 != grant->epoch.value) {
        violate("a grant is sent that is not on the disk of its host");
    }
}

/// A request was sent. Now and then the source also hears it again much later, or a wrong one that
/// was made of it; what it answers to a wrong one nobody hears.
void World::confuse(int to, const Message& message) {
    if (!std::holds_alternative<engine::MsgGrantRequest>(message.body) || now >= heal_at ||
        !confusion.chance(0.5)) {
        return;
    }
    const auto kind = static_cast<Confusion>(confusion.between(0, 3));
    const std::int64_t late_us = confusion.chance(0.5) ? 5'000 : 10'000'000;
    after(Duration{confusion.between(0, late_us)}, [this, to, kind, message] {
        Host& host = hosts[to];
        if (!host.daemon_up || !host.source) {
            return;
        }
        Message wrong = message;
        auto& request = std::get<engine::MsgGrantRequest>(wrong.body);
        switch (kind) {
            case Confusion::kLate:
                if (confusion.chance(0.5)) {
                    request.epoch = {};  // A restart let the target forget it.
                }
                deliver(to, wrong);
                return;
            case Confusion::kStaleToken:
                if (host.worker && host.worker->frozen) {
                    request.token = *host.worker->frozen;
                }
                wrong.migration = request.token.migration;
                --request.token.count;
                break;
            case Confusion::kOtherMigration:
                wrong.migration = {confusion.next(), confusion.next()};
                if (host.worker && host.worker->frozen) {
                    request.token = *host.worker->frozen;
                }
                break;
            case Confusion::kOtherEpoch:
                request.epoch = {host.source->epoch().value + (confusion.chance(0.5) ? 2 : 0)};
                break;
        }
        nobody_hears = true;
        source_step(to, source_event::Received{
                            wrong, {confusion.next(), confusion.next()}, name_of(1 - to)});
        nobody_hears = false;
    });
}

/// The source has restarted and knows only by its disk who gave a grant back; a request of that one
/// has been on its way since before, and names no epoch.
void World::ask_again(int index) {
    after(Duration{confusion.between(0, 5'000'000)}, [this, index] {
        Host& host = hosts[index];
        if (!host.daemon_up || !host.source || !host.worker || !host.worker->frozen || !host.disk ||
            host.disk->granted || returned.empty()) {
            return;
        }
        nobody_hears = true;
        source_step(index, source_event::Received{
                               {host.disk->granted_migration,
                                engine::MsgGrantRequest{*host.worker->frozen,
                                                        {},
                                                        engine::ArrivalEvidence::kGuestResumed,
                                                        host.ticket}},
                               {confusion.next(), confusion.next()},
                               name_of(1 - index)});
        nobody_hears = false;
    });
}

}  // namespace gantry::sim
