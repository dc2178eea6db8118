// The part of NVML's ABI that is served, in our own words: values and layouts are those of NVML 13.
// Sizes in bytes, clocks in MHz. Source: the API's public reference; layouts are held by asserts.
#pragma once

namespace gantry::nvml {

enum Result : int {
    kSuccess = 0,
    kUninitialized = 1,
    kInvalidArgument = 2,
    kNotSupported = 3,
    kNotFound = 6,
    kInsufficientSize = 7,
    kDriverNotLoaded = 9,
    kTimeout = 10,
    kVersionMismatch = 25,
    kUnknown = 999,
};

struct Device;  ///< Opaque to applications; an address inside the library.

struct PciInfo {
    char bus_id_legacy[16];  ///< dddd:bb:dd.f
    unsigned domain;
    unsigned bus;
    unsigned device;
    unsigned pci_device_id;
    unsigned pci_subsystem_id;
    char bus_id[32];  ///< dddddddd:bb:dd.f
};
static_assert(sizeof(PciInfo) == 68);

struct PciInfoExt {
    unsigned version;  ///< sizeof | 1 << 24
    unsigned domain;
    unsigned bus;
    unsigned device;
    unsigned pci_device_id;
    unsigned pci_subsystem_id;
    unsigned base_class;
    unsigned sub_class;
    char bus_id[32];  ///< dddddddd:bb:dd.f
};
static_assert(sizeof(PciInfoExt) == 64);

struct Memory {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
};
static_assert(sizeof(Memory) == 24);

struct MemoryV2 {
    unsigned version;  ///< sizeof | 2 << 24
    unsigned long long total;
    unsigned long long reserved;
    unsigned long long free;
    unsigned long long used;
};
static_assert(sizeof(MemoryV2) == 40);

struct ProcessInfoV1 {
    unsigned pid;
    unsigned long long used_bytes;
};
static_assert(sizeof(ProcessInfoV1) == 16);

struct ProcessInfo {  ///< Of versions 2 and 3.
    unsigned pid;
    unsigned long long used_bytes;
    unsigned gpu_instance;      ///< ~0: none.
    unsigned compute_instance;  ///< ~0: none.
};
static_assert(sizeof(ProcessInfo) == 24);

struct FieldValue {
    unsigned field_id;
    unsigned scope_id;
    long long timestamp_us;
    long long latency_us;
    int value_type;
    int result;
    unsigned long long value;
};
static_assert(sizeof(FieldValue) == 40);

struct ConfidentialState {
    unsigned environment;
    unsigned feature;
    unsigned tools_mode;
};

struct ConfidentialSettings {
    unsigned version;  ///< sizeof | 1 << 24
    unsigned environment;
    unsigned feature;
    unsigned tools_mode;
    unsigned multi_gpu_mode;
};
static_assert(sizeof(ConfidentialSettings) == 20);

enum Brand : unsigned { kBrandUnknown = 0, kBrandNvidia = 14 };
enum Architecture : unsigned {
    kArchitectureMaxwell = 3,
    kArchitecturePascal = 4,
    kArchitectureVolta = 5,
    kArchitectureTuring = 6,
    kArchitectureAmpere = 7,
    kArchitectureAda = 8,
    kArchitectureHopper = 9,
    kArchitectureBlackwell = 10,
    kArchitectureUnknown = 0xffffffff,
};
enum ClockType : int { kClockGraphics = 0, kClockSm = 1, kClockMemory = 2, kClockVideo = 3 };
enum P2pStatus : int { kP2pOk = 0, kP2pNotSupported = 5 };

}  // namespace gantry::nvml
