// UserObjectBook: who holds references to the guest's user objects.
//
// The driver counts: it knows when the last executable graph and the last launch have ended. But no
// driver tells its counts, so here is what the guest and each of its graphs hold, that is what must
// be held again elsewhere. References of graphs inside a graph count for the outermost one.
//
// The destructor is the guest's and runs there. The driver calls ours, on a thread of its own: the
// object is forgotten then, and the guest's is offered to it. Nothing waits for its end.
//
// Invariant: while the gate is shut (the process is frozen, or not served yet) no destructor is
// offered: an object whose driver has called meanwhile stays in the book without a reference, so
// that the worker that goes on with the process offers it, and nobody else.
// Owner: GuestProcess. Threads: all calls lock, and none calls the driver with the lock held.
// Failure: none. Cost: a map entry for each reference's holder.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "host-daemon/execution/device/device.h"
#include "host-daemon/execution/objects/objects.h"
#include "proto/base/mutex.h"

namespace gantry::worker {

class UserObjectBook {
public:
    /// A destructor in the guest.
    struct Destructor {
        std::uint64_t function = 0;
        std::uint64_t argument = 0;
    };
    struct Reference {
        std::uint64_t handle = 0;
        unsigned count = 0;
    };

    explicit UserObjectBook(ObjectTable& objects);
    ~UserObjectBook();
    UserObjectBook(const UserObjectBook&) = delete;
    UserObjectBook& operator=(const UserObjectBook&) = delete;

    /// What the driver is given as destructor and argument of a new object.
    struct Made {
        CUhostFn run = nullptr;
        void* argument = nullptr;
    };
    Made prepare(std::uint64_t handle, const Destructor& destructor);
    /// The driver has made it, with `count` references of the guest's and `held` of a restore's.
    void add(const Made& made, CUuserObject native, unsigned count, unsigned held);
    /// The driver has refused it.
    void drop(const Made& made);

    /// Before the driver is asked to. False: the guest does not hold so many.
    bool release(CUuserObject object, unsigned count);
    void retain(CUuserObject object, unsigned count);
    /// As above; what the graph holds.
    bool release(CUgraph graph, CUuserObject object, unsigned count);
    void retain(CUgraph graph, CUuserObject object, unsigned count);
    /// `made` is a clone of `graph`, or has one inside: it holds what that held.
    void note_clone(CUgraph graph, CUgraph made);
    void forget_graph(CUgraph graph);

    /// By handle.
    [[nodiscard]] std::vector<Reference> of_guest() const;
    [[nodiscard]] std::vector<Reference> of_graph(CUgraph graph) const;
    [[nodiscard]] CUuserObject native_of(std::uint64_t handle) const;
    /// What the guest must hold after a restore; the caller asks the driver for the difference.
    int set_count(std::uint64_t handle, unsigned count);
    /// The object goes without its destructor: what the driver still has of it for the guest and
    /// the restore.
    unsigned silence(std::uint64_t handle);
    /// What restores have held until now, to be given back.
    [[nodiscard]] std::vector<std::pair<CUuserObject, unsigned>> take_held();

    using Offer = std::function<void(const Destructor&)>;
    /// Set before the first object.
    void set_offer(Offer offer);
    void shut();
    /// Offers what came meanwhile.
    void open();

private:
    struct Entry {
        std::uint64_t id = 0;  ///< Never used again, as handles may be.
        CUuserObject native = nullptr;
        Destructor destructor;
        unsigned count = 0;
        unsigned held = 0;
        bool is_due = false;  ///< The driver has called.
    };
    /// Outlives the book: a driver may call late.
    struct Core {
        Mutex mutex;
        ObjectTable* objects GANTRY_GUARDED_BY(mutex) = nullptr;  ///< Null: the book is gone.
        Offer offer GANTRY_GUARDED_BY(mutex);
        bool is_open GANTRY_GUARDED_BY(mutex) = true;
        std::uint64_t next_id GANTRY_GUARDED_BY(mutex) = 1;
        std::map<std::uint64_t, Entry> entries GANTRY_GUARDED_BY(mutex);
        std::map<CUgraph, std::map<CUuserObject, unsigned>> graphs GANTRY_GUARDED_BY(mutex);

        Entry* find(CUuserObject object) GANTRY_REQUIRES(mutex);
        void end(std::uint64_t handle) GANTRY_REQUIRES(mutex);
    };
    struct Argument {
        std::shared_ptr<Core> core;
        std::uint64_t handle = 0;
        std::uint64_t id = 0;
    };
    static void run(void* argument);
    [[nodiscard]] CUgraph outermost(CUgraph graph) const GANTRY_REQUIRES(core_->mutex);

    const std::shared_ptr<Core> core_;
};

}  // namespace gantry::worker
