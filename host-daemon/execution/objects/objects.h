// ObjectTable: the live objects of the guest process, by the handles that the guest holds.
//
// An object is how to make it (the command that did), how it was configured since (the newest
// command of each kind), and what it depends on; beside that the driver's own handle, which means
// nothing outside this process. Destroying an object forgets it, so that the table is proportional
// to what lives. A restore executes the creating and configuring commands again, in creation order.
//
// Invariant: a handle's kind in the table equals the kind in its bits, so that no command can pass
// an object off as another kind. Threads: all calls lock; entries are copied out, never referenced.
// Failure: lookups of unknown handles give 0. Cost: one hash look-up under a shared lock, also by
// the driver's handle; erasing costs as much as the object has children.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "host-daemon/execution/base/memory_share.h"
#include "proto/base/result.h"
#include "proto/base/shared_mutex.h"
#include "proto/cuda/handle_bits.h"

namespace gantry::worker {

using cuda::HandleKind;

/// A command that made or configured an object, as it came from the guest.
struct RecordedCommand {
    std::uint16_t op = 0;
    std::uint16_t lane = 0;
    std::uint64_t context = 0;
    std::vector<std::byte> args;
    std::vector<std::byte> trailing;
};

struct Object {
    std::uint64_t handle = 0;
    std::uint64_t native = 0;   ///< The driver's handle, as a number.
    std::uint64_t context = 0;  ///< Guest handle of the context it was made in.
    std::uint64_t order = 0;    ///< 1, 2, ... over the life of the process.
    std::uint64_t parent = 0;   ///< Dies with this object (a kernel with its library).
    RecordedCommand creation;
    std::map<std::uint64_t, RecordedCommand> configuration;  ///< By op and what it sets.
    /// Device memory that it takes beside the arena's, by what takes it: kOwnMemory, or a limit of
    /// a context. Given back when the object and all copies of it are gone.
    std::map<std::uint32_t, MemoryChargePtr> charges;
    static constexpr std::uint32_t kOwnMemory = ~std::uint32_t{0};

    [[nodiscard]] HandleKind kind() const { return cuda::handle_kind(handle); }
};

class ObjectTable {
public:
    explicit ObjectTable(std::uint64_t count_max) : count_max_(count_max) {}

    /// Refuses (false) a handle that is not well-formed, is taken, or is one too many.
    bool insert(Object object);
    /// The driver's handle; 0 when there is no such object of this kind.
    [[nodiscard]] std::uint64_t native(std::uint64_t handle, HandleKind kind) const;
    template <typename T>
    [[nodiscard]] T native_as(std::uint64_t handle, HandleKind kind) const {
        return reinterpret_cast<T>(native(handle, kind));
    }
    /// The guest's handle of a native one, the first made where it has several; 0 when unknown.
    [[nodiscard]] std::uint64_t handle_of(std::uint64_t native, HandleKind kind) const;
    [[nodiscard]] bool contains(std::uint64_t handle) const;
    /// Some configuring command is kept; false when there is no such object.
    [[nodiscard]] bool is_configured(std::uint64_t handle) const;
    [[nodiscard]] std::optional<Object> get(std::uint64_t handle) const;

    /// Keeps the newest configuring command under a key.
    void configure(std::uint64_t handle, std::uint64_t key, RecordedCommand command);
    void set_native(std::uint64_t handle, std::uint64_t native);
    [[nodiscard]] std::uint64_t charged(std::uint64_t handle, std::uint32_t what) const;
    /// Adds to what the object is charged for this; given back where there is no such object.
    void charge(std::uint64_t handle, std::uint32_t what, const MemoryChargePtr& more);
    /// It takes `bytes` now, whatever it was charged for.
    void set_charge(std::uint64_t handle, std::uint32_t what, std::uint64_t bytes);
    /// What all objects of a kind are charged for.
    [[nodiscard]] std::uint64_t charged_kind(HandleKind kind) const;
    /// Gives a restored object the books it had at the source.
    void restore_record(std::uint64_t handle, std::uint64_t order, std::uint64_t parent,
                        std::map<std::uint64_t, RecordedCommand> configuration);
    void set_parent(std::uint64_t handle, std::uint64_t parent);
    [[nodiscard]] std::uint64_t parent_of(std::uint64_t handle) const;
    /// The object without a parent that `handle` hangs on (a library's module: the library).
    [[nodiscard]] std::uint64_t root_of(std::uint64_t handle) const;
    /// Forgets the object and everything whose parent it is; false when there is none.
    bool erase(std::uint64_t handle);
    void clear();

    /// Copies of all objects that `filter` accepts, in creation order.
    [[nodiscard]] std::vector<Object> list(const std::function<bool(const Object&)>& filter) const;
    [[nodiscard]] std::vector<Object> list_kind(HandleKind kind) const;
    [[nodiscard]] std::size_t size() const;
    [[nodiscard]] bool is_full() const { return size() >= count_max_; }
    [[nodiscard]] std::size_t count_kind(HandleKind kind) const;
    [[nodiscard]] std::vector<std::uint64_t> natives_of(HandleKind kind) const;

private:
    using Index = std::unordered_multimap<std::uint64_t, std::uint64_t>;  ///< To handles.
    static void forget(Index& index, std::uint64_t key, std::uint64_t handle);
    void move_to_parent(Object& object, std::uint64_t parent) GANTRY_REQUIRES(mutex_);

    std::uint64_t count_max_;
    mutable SharedMutex mutex_;
    std::unordered_map<std::uint64_t, Object> objects_ GANTRY_GUARDED_BY(mutex_);
    Index by_native_ GANTRY_GUARDED_BY(mutex_);
    Index by_parent_ GANTRY_GUARDED_BY(mutex_);
    std::uint64_t next_order_ GANTRY_GUARDED_BY(mutex_) = 1;
    std::map<HandleKind, std::size_t> counts_ GANTRY_GUARDED_BY(mutex_);
};

}  // namespace gantry::worker
