// Job: the steps that every replacement has, whatever becomes of the device memory. What differs
// (check, prepare, send_final, tidy_up) is hand_over.cc's and copy.cc's.
//
// Threads: one; send_final may ask both workers at the same time.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "host-daemon/replacement/exchange.h"
#include "host-daemon/replacement/options.h"
#include "host-daemon/replacement/timeline.h"
#include "migration/engine/state.h"

namespace gantry::replacement {

using Runs = google::protobuf::RepeatedPtrField<control::BlockRun>;

using engine::kBlockBytes;
inline constexpr int kInlineRunsMax = 2000;  ///< Keeps a request well below a packet's size.

std::uint64_t count_of(const Runs& runs);

class Job {
public:
    Job(Endpoint& old_worker, Endpoint& fresh, const Options& options)
        : old_(old_worker), fresh_(fresh), options_(options), timeline_(options.begun) {
        timeline_.note(Whom::kFresh, "launch", options.begun, Clock::now());
    }
    virtual ~Job() = default;
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;

    Outcome run();

protected:
    virtual Result<void> check_devices(const control::DeviceDescription& from,
                                       const control::DeviceDescription& to) = 0;
    /// All that the old worker need not stop for.
    virtual Result<void> prepare() = 0;
    /// While it is frozen; at the end the fresh worker holds the same memory and objects.
    virtual Result<void> send_final() = 0;
    /// What the fresh worker still has of the old one's, once it serves.
    virtual void tidy_up() {}

    Result<Answer> ask(Endpoint& worker, control::ToWorker request,
                       const std::vector<int>& descriptors = {});
    /// Of the pause: the time since the last lap is that of this step.
    void lap(const char* step);

    /// What goes through memory of the host: all, or only what is in no arena.
    enum class Staging : std::uint8_t { kFew, kAll };
    Result<void> begin_precopy(bool arena_is_shared, Staging staging);
    Result<void> attach_arenas(Staging staging);
    /// A graph and the images that it names and the fresh worker has not.
    struct Parcel {
        std::string graph;
        control::UniqueFd images;  ///< Invalid: none.
        std::uint64_t images_bytes = 0;
        control::Digest digest;  ///< The final one: of what was sent last.
    };
    Result<Parcel> take_graph();
    Result<Parcel> take_final();
    Result<void> send_prepare(const Parcel& parcel, bool arena_is_shared);
    /// The guest's region at the fresh worker too, and what the last graph names of it page-locked,
    /// which takes its time: while the old worker serves.
    Result<void> attach_early();
    Result<void> apply_final(const Parcel& parcel, const control::MemorySum* memory);
    struct Scanned {
        Runs runs;
        control::Digest digest;        ///< kLook: of all blocks.
        std::uint64_t elapsed_us = 0;  ///< Without the rests.
        std::uint64_t rest_us = 0;
    };
    enum class ScanHow : std::uint8_t { kChanged, kLook };
    Result<Scanned> scan(ScanHow how, unsigned share_percent = 0);
    /// What becomes of the old worker's pieces at the fresh one: its arena's, or to be read there.
    enum class PiecesAs : std::uint8_t { kOwn, kWindow };
    using Pieces = google::protobuf::RepeatedPtrField<control::MemoryPiece>;
    /// Pieces after `*serial`, which follows, batch by batch; the sum over all pieces there are.
    /// `taken` sees each batch that the fresh worker has imported.
    Result<control::MemorySum> transfer_pieces(PiecesAs as, std::uint64_t* serial,
                                               const std::function<void(const Pieces&)>& taken);
    /// Blocks through memory of the host that both map.
    Result<void> copy_staged(const Runs& runs);
    /// The fresh worker must hold the frozen old one's memory; `what` it is, for a person.
    Result<void> verify(const control::Digest& expected, const char* what);

    Endpoint& old_;
    Endpoint& fresh_;
    const Options& options_;
    Report report_;
    Timeline timeline_;

private:
    Result<void> replace();
    Result<void> check();
    Result<void> detach_arena(Endpoint& worker);
    /// Images that were not sent yet, as a blob; an invalid descriptor when there are none.
    Result<control::UniqueFd> new_images(std::uint64_t* bytes);
    Result<void> send_graph(const Parcel& parcel, control::ToWorker request);
    [[nodiscard]] std::vector<Runs> batches_of(const Runs& runs) const;
    /// What the fresh worker is to be asked then.
    Result<control::ToWorker> read_batch(const Runs& runs, std::uint64_t offset);
    Result<void> freeze();
    Result<void> attach_guest();
    Result<void> change_over();
    void go_back();

    Owner owner_ = Owner::kOld;
    bool is_frozen_ = false;
    control::UniqueFd staging_;
    std::uint32_t batch_blocks_ = 0;  ///< Half of the staging area.
    control::Seed seed_;
    std::vector<std::string> images_sent_;
    Clock::time_point paused_at_;
    Clock::time_point lap_at_;
};

}  // namespace gantry::replacement
