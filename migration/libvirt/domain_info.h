// What Gantry reads out of a libvirt domain's XML: is the VM ours, what does it need, who owns it.
//
// The XML comes from libvirt, and through the `migrate begin` hook from another host, so it is
// treated as hostile: bounded in size, no DTD, no entities, no network, every value checked.
// A VM without our metadata is none of our business: the result then has no `gpu`.
//
// The operator writes, once, in the domain XML:
//     <metadata>
//       <gantry:gpu xmlns:gantry='urn:gantry:vm:1'>
//         <gantry:needs memory_mib='1024' cc_min='9.0'/>     cc_min may be left out
//         <gantry:share priority='4' weight='100'/>          may be left out, and either of both
//         <gantry:device model='H100'/>                      may be left out; also number='1' or
//                                                            uuid='GPU-...', or several: all hold
//         <gantry:region shmem='gantry-g1'/>                 may be left out if there is one shmem
//       </gantry:gpu>
//     </metadata>
// or, for a VM whose programs reach the GPU over TCP (proto/decisions/0003-tcp-guests.md), in place
// of the region and without a <shmem> device:
//         <gantry:tcp key='64 hex digits, which gantry-guest in the VM knows too'/>
// An attribute or element there that is none of these is refused (vm.metadata), as is any other
// element of that namespace: misspelt, it would be a VM without GPU, or without its limit.
//     <shmem name='gantry-g1' role='master'><model type='ivshmem-plain'/><size unit='M'>64</size>
// gantryd stamps, live, an element of its own (libvirt keeps one element per namespace):
//     <gantry_owner:owner xmlns:gantry_owner='urn:gantry:owner:1' daemon='10.77.0.1:7700'
//                         session='...' epoch='3' ticket='32 hex digits'/>
// which reaches the target inside the `migrate begin` XML and tells it whom to ask, and with what
// right (proto/base/ticket.h). Errors and logs never show the ticket.
//
// Thread-safe (no shared state). Cost: one parse, about 100 us.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/result.h"
#include "proto/base/ticket.h"

namespace gantry::libvirt {

inline constexpr char kNeedsNamespace[] = "urn:gantry:vm:1";
inline constexpr char kOwnerNamespace[] = "urn:gantry:owner:1";
inline constexpr char kOwnerPrefix[] = "gantry_owner";
inline constexpr std::size_t kMaxDomainXmlBytes = 4u << 20;
inline constexpr std::uint64_t kMaxGpuMemoryMib = 1u << 24;  // 16 TiB.
inline constexpr std::uint64_t kMaxGpuNumber = 255;
inline constexpr std::uint64_t kMaxRegionBytes = 64ull << 30;
/// Of a VM over TCP: a channel for each process. Its file takes what is used of it.
inline constexpr std::uint32_t kTcpChannels = 16;
inline constexpr std::uint64_t kTcpRegionBytes = kTcpChannels * (64ull << 20) + (8ull << 10);

/// Stable reason ids of the errors of parse_domain_xml.
namespace reason {
inline constexpr char kXml[] = "vm.xml";            ///< Not a domain XML we accept.
inline constexpr char kMetadata[] = "vm.metadata";  ///< Our element is there and wrong.
inline constexpr char kOwner[] = "vm.owner";        ///< The owner's element is wrong.
inline constexpr char kRegion[] = "vm.region";      ///< No usable shared-memory device.
}  // namespace reason

/// The ivshmem device through which the guest reaches Gantry.
struct RegionDevice {
    std::string shmem_name;
    std::string path;  ///< "/dev/shm/NAME", made by QEMU on either host.
    std::uint64_t region_bytes = 0;
};

/// Of a GPU that it shares with other sessions.
struct GpuShare {
    std::uint32_t priority = 4;  ///< 0 to 9: the higher one goes first.
    std::uint32_t weight = 100;  ///< 1 to 1000: parts of the time among equals.
    friend bool operator==(const GpuShare&, const GpuShare&) = default;
};

/// Which of a host's GPUs it may be; nothing of it: any.
struct GpuWish {
    std::optional<std::uint32_t> number;  ///< As the CUDA driver counts those of the host.
    std::string uuid;                     ///< 32 hex digits.
    std::string model;                    ///< Whole words of the GPU's name.
    [[nodiscard]] bool is_any() const { return !number && uuid.empty() && model.empty(); }
    friend bool operator==(const GpuWish&, const GpuWish&) = default;
};

struct GpuNeeds {
    std::uint64_t memory_mib = 0;    ///< Quota, enforced.
    std::uint32_t cc_min_major = 0;  ///< 0.0: whatever the code allows.
    std::uint32_t cc_min_minor = 0;
    RegionDevice region;
    std::optional<GpuShare> share;
    GpuWish wish;
    std::string guest_key;  ///< 64 hex digits: the VM is over TCP, and gantryd makes the region.
};

/// Who answers for the session: the address of the gantryd that owns it.
struct Owner {
    std::string daemon;   ///< "ADDRESS:PORT" or "[IPV6]:PORT".
    std::string session;  ///< The VM's session as that gantryd names it.
    Epoch epoch;
    Ticket ticket = {};  ///< None: an older gantryd has stamped it.
};

struct DomainInfo {
    std::string name;
    std::string uuid;             ///< Lower case, with dashes.
    std::optional<GpuNeeds> gpu;  ///< Absent: not ours.
    std::optional<Owner> owner;
};

/// Reads a whole <domain>. Errors name the element, what is wrong with it and what to write
/// instead.
[[nodiscard]] Result<DomainInfo> parse_domain_xml(std::string_view xml);

/// The element without namespace, as virDomainSetMetadata wants it. Values that it could not hold
/// as they are are refused.
[[nodiscard]] Result<std::string> owner_xml(const Owner& owner);

}  // namespace gantry::libvirt
