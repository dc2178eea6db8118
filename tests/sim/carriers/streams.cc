#include "tests/sim/carriers/streams.h"

#include <algorithm>
#include <utility>

namespace gantry::sim {
namespace {

constexpr int kStreams = 2;
constexpr int kWindow = 3;  ///< Batches of a stream on their way.
constexpr Duration kRedialMax{2'000'000};

}  // namespace

Duration Streams::flight() {
    return world_.random.chance(world_.slow) ? world_.delay(1'000, 2'000'000)
                                             : world_.delay(200, 2'000);
}

void Streams::open(int target, engine::MigrationId migration) {
    close(target);
    for (int i = 0; i < kStreams; ++i) {
        auto stream = std::make_shared<Stream>();
        stream->target = target;
        stream->migration = migration;
        streams_[static_cast<std::size_t>(target)].push_back(stream);
        world_.after(world_.delay(100, 5'000), [this, stream] { dial(stream); });
    }
}

void Streams::close(int target) {
    for (const Shared& stream : std::exchange(streams_[static_cast<std::size_t>(target)], {})) {
        stream->is_closed = true;
        break_off(stream);
    }
}

void Streams::die(int host) {
    close(host);
    for (const Shared& stream : streams_[static_cast<std::size_t>(1 - host)]) {
        break_off(stream);
    }
}

void Streams::dial_later(const Shared& stream) {
    world_.after(stream->redial, [this, stream] { dial(stream); });
    stream->redial = std::min(stream->redial * 2, kRedialMax);
}

void Streams::dial(const Shared& stream) {
    if (stream->is_closed || stream->queue) {
        return;
    }
    const int source = 1 - stream->target;
    const bool is_reached = !world_.partitioned && world_.hosts[source].daemon_up;
    stream->queue =
        is_reached ? queue_of_(source, stream->migration, World::name_of(stream->target)) : nullptr;
    if (!stream->queue) {
        dial_later(stream);
        return;
    }
    stream->id = stream->queue->open_stream();
    stream->has_carried = false;
    pump_one(stream);
}

void Streams::pump(int source) {
    for (const Shared& stream : std::vector(streams_[static_cast<std::size_t>(1 - source)])) {
        pump_one(stream);
    }
}

void Streams::pump_one(const Shared& stream) {
    if (!stream->queue) {
        return;
    }
    const int source = 1 - stream->target;
    if (!world_.hosts[source].daemon_up ||
        queue_of_(source, stream->migration, World::name_of(stream->target)) != stream->queue) {
        break_off(stream);  // the migration has ended, and its queue with it
        return;
    }
    while (stream->under_way < kWindow && stream->queue->waiting()) {
        auto batch = stream->queue->pop(stream->id);
        ++stream->under_way;
        if (world_.random.chance(world_.partitioned ? 0.3 : world_.loss * 0.1)) {
            break_off(stream);
            return;
        }
        const Duration more = world_.partitioned ? world_.delay(0, 3'000'000) : Duration{0};
        stream->last_arrival = std::max(stream->last_arrival, world_.now + flight() + more);
        world_.at(stream->last_arrival, [this, stream, life = stream->life, batch] {
            if (stream->life == life) {
                arrive(stream, batch);
            }
        });
    }
}

void Streams::arrive(const Shared& stream, std::shared_ptr<const control::BulkDown> batch) {
    stream->arrived.push_back(std::move(batch));
    stream->has_carried = true;
    if (!stream->is_read) {
        stream->is_read = true;
        (void)runtimes_[static_cast<std::size_t>(stream->target)]->start(
            [this, stream] { read(stream); });
    }
}

/// The thread that reads one stream.
void Streams::read(const Shared& stream) {
    try {
        while (!stream->arrived.empty()) {
            const auto batch = stream->arrived.front();
            stream->arrived.pop_front();
            const std::uint64_t life = stream->life;
            const auto target = target_of_(stream->target);
            const bool is_applied = target && target->apply(*batch);
            if (stream->life != life) {
                continue;
            }
            --stream->under_way;
            if (is_applied) {
                acknowledge(stream, *batch);
            }
            world_.after(Duration{0}, [this, stream] { pump_one(stream); });
        }
    } catch (const Killed&) {
        stream->is_read = false;
        throw;
    }
    stream->is_read = false;
}

void Streams::acknowledge(const Shared& stream, const control::BulkDown& batch) {
    world_.after(flight(), [stream, life = stream->life, queue = stream->queue,
                            round = batch.round(), number = batch.batch()] {
        if (stream->life == life) {
            queue->acknowledge(round, number);
        }
    });
}

/// Each side hears of it in its own time.
void Streams::break_off(const Shared& stream) {
    ++stream->life;
    stream->arrived.clear();
    stream->under_way = 0;
    if (!stream->queue) {
        return;
    }
    world_.after(world_.delay(0, 1'000'000), [queue = std::exchange(stream->queue, nullptr),
                                              id = stream->id] { queue->lose_stream(id); });
    if (stream->is_closed) {
        return;
    }
    world_.after(world_.delay(0, 1'000'000), [this, stream, has_carried = stream->has_carried] {
        if (stream->is_closed) {
            return;
        }
        if (const auto target = target_of_(stream->target); target && has_carried) {
            target->bulk_lost({Code::kUnavailable, "stream.lost", "a bulk stream broke"});
        }
        stream->redial = Duration{100'000};
        dial_later(stream);
    });
}

}  // namespace gantry::sim
