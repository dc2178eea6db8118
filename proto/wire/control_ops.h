// Gantry's own commands. They share the ring with the CUDA calls, whose numbers start at 64
// (proto/cuda/gen/opcodes.h). Numbers are append-only; 0 is invalid.
//
// Each comment gives: arguments -> answer. "async" commands have no answer.
#pragma once

#include <cstdint>

#include "proto/wire/region.h"

namespace gantry::wire {

enum class ControlOp : std::uint16_t {
    kInvalid = 0,
    kPad = 1,             ///< Skips to the end of the ring. Async, never seen by dispatch.
    kHello = 2,           ///< HelloCall -> HelloReply. First command of a channel.
    kDeviceFacts = 3,     ///< DeviceFactsCall -> DeviceFacts (in the bulk extent).
    kConfirm = 4,         ///< no arguments; answered only in HostWords.confirm_seq[lane].
    kStageImage = 5,      ///< StageImageCall + image bytes. Async; pieces in order, any lane.
    kDropImage = 6,       ///< StageImageCall (bytes ignored). Async.
    kWriteDevice = 7,     ///< WriteDeviceCall + bytes: pageable host memory to device. Async.
    kReadDevice = 8,      ///< ReadDeviceCall -> bytes in the bulk extent named by the guest.
    kWaitCallback = 9,    ///< no arguments -> CallbackReply; parked until a host callback is due.
    kCallbackDone = 10,   ///< CallbackDoneCall. Async: lets the stream go on.
    kDrainOutput = 11,    ///< DrainOutputCall -> device printf/assert bytes in the bulk extent.
    kGoodbye = 12,        ///< no arguments -> empty: the process ends in order.
    kLookAtEvent = 13,    ///< LookAtEventCall. Async: shows in HostWords whether it has completed.
    kWriteFromBulk = 14,  ///< BulkCopyCall: from the bulk area to the device. Async.
    kReadToBulk = 15,     ///< BulkCopyCall: from the device to the bulk area. Async.
    kLookAtBulk = 16,     ///< LookAtBulkCall. Async: shows a kWriteFromBulk that has ended.
    kFindMemory = 17,     ///< FindMemoryCall -> empty: it is device memory, or an error.
    kProfile = 18,        ///< ProfileCall + rows + ranges (profile.h). Async.
};

struct HelloCall {
    std::uint32_t wire_version;
    std::uint32_t guest_pid;
    std::uint64_t table_hash;  ///< Hash of the API table both sides were built from.
    char program[32];          ///< The program's name, for people; behind it zeros, or nothing.
};

struct HelloReply {
    std::uint32_t wire_version;
    std::uint32_t driver_version;  ///< What cuDriverGetVersion shall answer.
    std::uint64_t table_hash;
    std::uint32_t device_count;
    std::uint32_t reserved;
};

struct DeviceFactsCall {
    std::uint32_t device;
    std::uint32_t reserved;
    std::uint64_t bulk_offset;  ///< Where the guest wants the answer, in its bulk area.
    std::uint64_t bulk_bytes;
};

inline constexpr std::uint32_t kMaxDeviceAttributes = 192;
inline constexpr std::uint32_t kMaxLimits = 16;

/// Everything about a device that cannot change while the VM lives: answered in the guest.
struct DeviceFacts {
    char name[256];
    std::uint8_t uuid[16];
    char pci_bus_id[32];
    std::uint64_t total_memory_bytes;
    std::int32_t attributes[kMaxDeviceAttributes];         ///< By CUdevice_attribute number.
    std::uint32_t attribute_status[kMaxDeviceAttributes];  ///< CUresult of each query.
    std::uint64_t limits[kMaxLimits];                      ///< By CUlimit number, initial values.
    std::uint32_t limit_status[kMaxLimits];
    std::int32_t least_stream_priority;
    std::int32_t greatest_stream_priority;
    std::uint32_t context_api_version;
    std::uint32_t reserved;
};

struct StageImageCall {
    std::uint64_t image_id;  ///< Guest-chosen; used by the load call that follows.
    std::uint64_t total_bytes;
    std::uint64_t offset;  ///< Of the bytes that trail this struct.
};

struct WriteDeviceCall {
    std::uint64_t device_address;
    std::uint64_t bytes;   ///< Equals the trailing bytes.
    std::uint64_t stream;  ///< Guest handle; 0 legacy, 1 legacy, 2 per-thread.
};

struct ReadDeviceCall {
    std::uint64_t device_address;
    std::uint64_t bytes;
    std::uint64_t stream;
    std::uint64_t bulk_offset;
};

/// kGraphCopy is a host function of the shim's own: a graph's copy from or to pageable memory.
enum class CallbackKind : std::uint32_t {
    kInvalid = 0,
    kHostFunction = 1,
    kStreamCallback = 2,
    kGraphCopy = 3,
};

struct CallbackReply {
    std::uint64_t callback_id;  ///< To be named in kCallbackDone.
    std::uint64_t function;     ///< Guest code address as the application gave it.
    std::uint64_t user_data;
    std::uint64_t stream;
    CallbackKind kind;
    std::uint32_t status;  ///< CUresult handed to a stream callback.
};

struct CallbackDoneCall {
    std::uint64_t callback_id;
};

struct LookAtEventCall {
    std::uint64_t event;     ///< Guest handle.
    std::uint64_t recorded;  ///< Position of its newest cuEventRecord.
};

struct FindMemoryCall {
    std::uint64_t address;
    std::uint64_t bytes;
};

struct BulkCopyCall {
    std::uint64_t device_address;
    std::uint64_t bytes;
    std::uint64_t stream;
    std::uint64_t bulk_offset;
    std::uint32_t word;  ///< Of HostWords.bulk_done, where its end is shown.
    std::uint32_t reserved;
};

struct LookAtBulkCall {
    std::uint64_t position;  ///< Of the kWriteFromBulk.
    std::uint32_t word;      ///< That it named.
    std::uint32_t reserved;
};

struct DrainOutputCall {
    std::uint64_t bulk_offset;
    std::uint64_t bulk_bytes;
};

/// The drained bytes are a run of {u32 descriptor (1 or 2), u32 bytes, bytes...} pieces; the
/// reply's bulk_bytes tells how many bytes there are in all.

}  // namespace gantry::wire
