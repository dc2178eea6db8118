// Start and end of the session, and what a fork does to it.
#include "guest-shim/session/connection.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "guest-shim/session/base/report.h"
#include "guest-shim/session/base/trace.h"
#include "proto/cuda/settings.h"

namespace gantry::session {
namespace {

FutexMutex g_start_mutex;
bool g_tried GANTRY_GUARDED_BY(g_start_mutex) = false;
CUresult g_start_result GANTRY_GUARDED_BY(g_start_mutex) = CUDA_SUCCESS;

/// A child of a process that has used CUDA cannot use it: its threads and its place in the ring are
/// the parent's. It must not hold the link open either, or the worker would outlive the parent.
/// Neither can one whose parent was about to begin: the thread that holds the mutex is not here.
void after_fork_in_child() {
    State state = g_gate.state.load(std::memory_order_relaxed);
    if (state != State::kReady && state != State::kBroken && !g_start_mutex.is_held()) {
        return;
    }
    follow_profile_word(nullptr);
    g_gate.state.store(State::kForked, std::memory_order_release);
    if (g_connection.attachment.link_fd >= 0) {
        close(g_connection.attachment.link_fd);
        g_connection.attachment.link_fd = -1;
    }
}

__attribute__((constructor)) void look_after_forks() {
    pthread_atfork(nullptr, nullptr, after_fork_in_child);
}

bool say_hello(AttachProblem* problem) {
    Connection& connection = g_connection;
    wire::HelloCall hello{
        wire::kWireVersion, static_cast<std::uint32_t>(getpid()), table_hash(), {}};
    std::memcpy(hello.program, program_invocation_short_name,
                strnlen(program_invocation_short_name, sizeof(hello.program)));
    wire::HelloReply reply{};
    Exchange command;
    command.op = static_cast<std::uint16_t>(wire::ControlOp::kHello);
    command.args = &hello;
    command.args_bytes = sizeof(hello);
    command.reply = &reply;
    command.reply_bytes = sizeof(reply);
    const CUresult result = exchange_on(0, 0, &command, false);
    if (result != CUDA_SUCCESS && reply.wire_version == 0) {
        return fail(problem, static_cast<std::uint32_t>(result),
                    "the worker did not answer the hello (CUDA error %d); gantryd's log says why",
                    static_cast<int>(result));
    }
    if (reply.wire_version != wire::kWireVersion || reply.table_hash != hello.table_hash) {
        return fail(problem, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
                    "the worker has wire version %u and call table %016llx, this libcuda.so.1 has "
                    "%u and %016llx; install the same Gantry version on both sides",
                    reply.wire_version, static_cast<unsigned long long>(reply.table_hash),
                    wire::kWireVersion, static_cast<unsigned long long>(hello.table_hash));
    }
    if (result != CUDA_SUCCESS) {
        return fail(problem, static_cast<std::uint32_t>(result), "the worker refused the hello");
    }
    connection.driver_version = reply.driver_version;
    connection.devices = reply.device_count < kMaxDevices ? reply.device_count : kMaxDevices;
    return true;
}

bool read_facts(AttachProblem* problem) {
    Connection& connection = g_connection;
    connection.facts = static_cast<wire::DeviceFacts*>(
        std::calloc(connection.devices == 0 ? 1 : connection.devices, sizeof(wire::DeviceFacts)));
    const auto pages = static_cast<std::uint32_t>(
        wire::align_up(sizeof(wire::DeviceFacts), wire::kPageBytes) / wire::kPageBytes);
    std::uint32_t first = 0;
    if (connection.facts == nullptr || !connection.bulk.allocate(pages, &first)) {
        return fail(problem, CUDA_ERROR_OUT_OF_MEMORY, "no memory for the device facts");
    }
    bool fine = true;
    for (std::uint32_t device = 0; device < connection.devices && fine; ++device) {
        const wire::DeviceFactsCall arguments{device, 0, first * wire::kPageBytes,
                                              sizeof(wire::DeviceFacts)};
        Exchange command;
        command.op = static_cast<std::uint16_t>(wire::ControlOp::kDeviceFacts);
        command.args = &arguments;
        command.args_bytes = sizeof(arguments);
        command.touch_first = first;
        command.touch_pages = pages;
        const CUresult result = exchange_on(0, 0, &command, false);
        fine = result == CUDA_SUCCESS && command.bulk_bytes == sizeof(wire::DeviceFacts);
        if (!fine) {
            fail(problem, CUDA_ERROR_UNKNOWN,
                 "the worker did not describe device %u (CUDA error %d, %llu bytes)", device,
                 static_cast<int>(result), static_cast<unsigned long long>(command.bulk_bytes));
            break;
        }
        std::memcpy(&connection.facts[device], connection.bulk.at(arguments.bulk_offset),
                    sizeof(wire::DeviceFacts));
    }
    connection.bulk.free(first, pages);
    return fine;
}

/// CUDA_* settings that the application's user made. A hidden device is no fault worth a line.
bool apply_cuda_settings(AttachProblem* problem) {
    Connection& connection = g_connection;
    CUuuid uuids[kMaxDevices];
    unsigned shown[kMaxDevices];
    for (std::uint32_t device = 0; device < connection.devices; ++device) {
        std::memcpy(&uuids[device], connection.facts[device].uuid, sizeof(CUuuid));
    }
    const cuda::VisibleDevices visible = cuda::visible_devices(std::getenv("CUDA_VISIBLE_DEVICES"),
                                                               uuids, connection.devices, shown);
    connection.devices = visible.count;  // A worker has one device: it is shown or not.
    connection.launches_block = cuda::launches_block();
    problem->cuda_error = static_cast<std::uint32_t>(visible.result);
    return visible.result == CUDA_SUCCESS;
}

void release(Connection* connection) {
    close_channel(connection);
    const Attachment ended = connection->attachment;
    connection->attachment = Attachment{};
    if (ended.region != nullptr) {
        munmap(ended.region, ended.region_bytes);
    }
    if (ended.region_fd >= 0) {
        close(ended.region_fd);
    }
    if (ended.link_fd >= 0) {
        close(ended.link_fd);
    }
}

bool connect(AttachProblem* problem) {
    Connection& connection = g_connection;
    char text[300];
    if (!read_environment(&connection.environment, text, sizeof(text))) {
        return fail(problem, CUDA_ERROR_INVALID_VALUE, "%s", text);
    }
    const Environment& environment = connection.environment;
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0) {
        connection.cpus = static_cast<unsigned>(CPU_COUNT(&cpus));
    }
    if (environment.trace_path != nullptr && !start_trace(environment.trace_path)) {
        return fail(problem, CUDA_ERROR_OPERATING_SYSTEM, "GANTRY_TRACE=%s: %s",
                    environment.trace_path, std::strerror(errno));
    }
    if (environment.report_path != nullptr && !start_report(environment.report_path)) {
        return fail(problem, CUDA_ERROR_OPERATING_SYSTEM, "GANTRY_REPORT=%s: %s",
                    environment.report_path, std::strerror(errno));
    }
    if (!attach(environment.transport, table_hash(), environment.connect_timeout_ms,
                &connection.attachment, problem)) {
        return false;
    }
    if (!open_channel(&connection, problem) || !say_hello(problem) || !read_facts(problem) ||
        !reserve_addresses(&connection, problem) || !apply_cuda_settings(problem)) {
        release(&connection);
        return false;
    }
    return true;
}

/// A machine where nobody configured a transport and no gantryd listens simply has no device;
/// programs probe for that, and a message would only disturb them.
bool is_worth_a_line(const AttachProblem& problem) {
    if (problem.text[0] == '\0') {
        return false;
    }
    return problem.cuda_error != CUDA_ERROR_NO_DEVICE ||
           g_connection.environment.transport != nullptr;
}

__attribute__((destructor)) void end_of_process() {
    write_report();
    end();
}

}  // namespace

CUresult start() noexcept {
    const State state = g_gate.state.load(std::memory_order_acquire);
    if (state != State::kUnused) {
        return closed_result();
    }
    Guard guard(g_start_mutex);
    if (g_tried) {
        return g_start_result;
    }
    g_tried = true;
    AttachProblem problem;
    if (!connect(&problem)) {
        g_start_result = static_cast<CUresult>(problem.cuda_error);
        if (is_worth_a_line(problem)) {
            std::fprintf(stderr, "gantry: %s\n", problem.text);
        }
        return g_start_result;
    }
    follow_profile_word(&g_connection.host->profile);
    g_gate.state.store(State::kReady, std::memory_order_release);
    return CUDA_SUCCESS;
}

void end() noexcept {
    const State state = g_gate.state.load(std::memory_order_acquire);
    follow_profile_word(nullptr);
    if (state == State::kReady) {
        post_control(wire::ControlOp::kGoodbye, nullptr, 0, nullptr, 0);
    }
    if (state == State::kReady || state == State::kBroken) {
        close_channel(&g_connection);
        g_gate.state.store(State::kEnded, std::memory_order_release);
    }
}

std::uint32_t device_count() noexcept { return g_connection.devices; }

const wire::DeviceFacts* device_facts(int device) noexcept {
    if (device < 0 || static_cast<std::uint32_t>(device) >= g_connection.devices) {
        return nullptr;
    }
    return &g_connection.facts[device];
}

bool launches_block() noexcept { return g_connection.launches_block; }

std::uint32_t driver_version() noexcept { return g_connection.driver_version; }

}  // namespace gantry::session
