// Driver objects and the handles that programs hold for them.
//
// A handle is the address of a slot in one reserved region, so that any value a program passes can
// be judged without touching memory that is not ours: outside the region, misaligned, freed or of
// another kind means "invalid". Slots are reused, oldest first; objects are shared_ptr, so work
// in flight keeps what it uses alive after the program destroys the handle.
// Threads: all functions, any thread. Cost of find(): a spin lock of the slot and one atomic count.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace gantry::softgpu {

enum class ObjectKind : std::uint32_t {
    kNone = 0,
    kContext,
    kModule,
    kLibrary,
    kKernel,
    kFunction,
    kStream,
    kEvent,
    kMemoryPool,
    kPhysicalMemory,
    kArray,
    kMipmappedArray,
    kTextureReference,
    kSurfaceReference,
    kGraph,
    kGraphNode,
    kGraphExec,
    kLink,
    kUserObject,
    kGreenContext,
};

class Object {
public:
    explicit Object(ObjectKind kind) : kind_(kind) {}
    virtual ~Object() = default;
    Object(const Object&) = delete;
    Object& operator=(const Object&) = delete;

    /// Makes the handles of what it owns invalid; called when its own handle goes.
    virtual void retire() {}

    [[nodiscard]] ObjectKind kind() const { return kind_; }
    /// The published handle; null before publish().
    [[nodiscard]] void* handle() const { return handle_; }
    template <typename Handle>
    [[nodiscard]] Handle as() const {
        return reinterpret_cast<Handle>(handle_);
    }

private:
    friend class HandleTable;
    const ObjectKind kind_;
    void* handle_ = nullptr;
};

class HandleTable {
public:
    static HandleTable& instance();

    /// Gives the object a handle; the table holds a reference until retract().
    void* publish(const std::shared_ptr<Object>& object);
    /// Makes the object's handle invalid. False when it has none, or has none any more.
    bool retract(const Object& object);
    /// The object behind a handle if it is of this kind, else null.
    std::shared_ptr<Object> find(const void* handle, ObjectKind kind);
    /// The kind behind any value, kNone when it is no live handle.
    ObjectKind kind_of(const void* handle);

private:
    HandleTable();
    struct Slot;
    Slot* slot_of(const void* handle) const;

    Slot* slots_ = nullptr;
    std::atomic<std::uint64_t> used_{0};  ///< Slots below have been handed out at least once.
    struct FreeList;
    FreeList* free_;
};

template <typename T, typename Handle>
std::shared_ptr<T> find(Handle handle) {
    return std::static_pointer_cast<T>(
        HandleTable::instance().find(reinterpret_cast<const void*>(handle), T::kKind));
}

template <typename Handle, typename T>
Handle publish(const std::shared_ptr<T>& object) {
    return reinterpret_cast<Handle>(HandleTable::instance().publish(object));
}

inline bool retract(const Object& object) { return HandleTable::instance().retract(object); }

}  // namespace gantry::softgpu
