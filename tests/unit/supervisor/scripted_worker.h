// A worker that answers as a test says, and that gantryd adopts as after a restart.
//
// Threads: one of its own answers. Events and the end of the connection are a test's.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "host-daemon/state/blocks/block_runs.h"
#include "host-daemon/supervisor/parts/part_fingerprints.h"
#include "host-daemon/supervisor/workers/worker.h"
#include "proto/control/channel.h"
#include "proto/control/worker.pb.h"
#include "tests/unit/supervisor/stand.h"

namespace gantry::supervisor {

class ScriptedWorker {
public:
    struct Reply {
        control::FromWorker message;
        std::vector<control::UniqueFd> blobs;
    };
    /// Fills the reply of anything but a status and a shutdown; none: an empty one.
    using Answer = std::function<void(const control::ToWorker&, Reply*)>;

    ScriptedWorker(const std::string& session, engine::PartId part, const std::string& path,
                   control::WorkerState state = control::WORKER_STATE_SERVING, Answer answer = {})
        : state_(state), answer_(std::move(answer)) {
        record_.session_id = session;
        record_.part = part;
        record_.process = {stand_.pid(), stand_.start_time(), path};
        auto listener = control::PacketListener::bind(path);
        EXPECT_TRUE(listener.ok()) << listener.error().to_string();
        thread_ =
            std::jthread([this, listening = std::move(*listener)](
                             const std::stop_token& stops) mutable { serve(listening, stops); });
    }
    ~ScriptedWorker() {
        thread_.request_stop();
        thread_.join();
    }
    ScriptedWorker(const ScriptedWorker&) = delete;
    ScriptedWorker& operator=(const ScriptedWorker&) = delete;

    [[nodiscard]] const WorkerRecord& record() const { return record_; }
    /// Its process goes on.
    void hang_up() { hangs_up_ = true; }
    /// The guest's process has ended.
    void tell_guest_gone() { tells_guest_gone_ = true; }
    /// gantryd has told it to end.
    [[nodiscard]] bool was_ended() const { return was_ended_; }
    [[nodiscard]] bool lives() const {
        siginfo_t info{};
        return ::waitid(P_PID, static_cast<id_t>(stand_.pid()), &info,
                        WEXITED | WNOHANG | WNOWAIT) == 0 &&
               info.si_pid == 0;
    }

    /// The answer to a request for fingerprints: of device blocks with these.
    static void list_blocks(
        const std::vector<std::pair<std::uint64_t, engine::Fingerprint>>& blocks, Reply* reply) {
        control::BlockRunList list;
        std::string raw;
        for (const auto& [index, fingerprint] : blocks) {
            state::append_run({engine::MemorySpace::kDevice, index}, list.mutable_runs());
            state::append_fingerprint(fingerprint, &raw);
        }
        const std::string runs = list.SerializeAsString();
        control::Digest& digest = *reply->message.mutable_digest();
        digest.set_runs_bytes(runs.size());
        digest.set_fingerprint_bytes(raw.size());
        reply->blobs.push_back(std::move(control::make_blob(runs)).value());
        reply->blobs.push_back(std::move(control::make_blob(raw)).value());
    }

private:
    static constexpr std::chrono::milliseconds kLook{5};

    void serve(control::PacketListener& listening, const std::stop_token& stops) {
        std::optional<control::PacketSocket> socket;
        while (!stops.stop_requested()) {
            if (!socket) {
                if (auto accepted = listening.accept(kLook)) {
                    socket = std::move(*accepted);
                }
                continue;
            }
            if (tells_guest_gone_.exchange(false)) {
                control::FromWorker event;
                event.mutable_event()->mutable_guest_gone()->set_orderly(true);
                (void)socket->send_message(event);
            }
            if (hangs_up_) {
                return;
            }
            auto packet = socket->receive(kLook);
            if (packet) {
                answer(*socket, *packet);
            } else if (packet.error().code != Code::kDeadlineExceeded) {
                return;
            }
        }
    }

    void answer(control::PacketSocket& socket, const control::Packet& packet) {
        control::ToWorker request;
        ASSERT_TRUE(
            request.ParseFromArray(packet.bytes.data(), static_cast<int>(packet.bytes.size())));
        Reply reply;
        reply.message.set_request_id(request.request_id());
        reply.message.mutable_status();
        if (request.has_status()) {
            control::StatusReply& status = *reply.message.mutable_status_reply();
            status.set_state(state_);
            status.set_protocol_version(control::kWorkerProtocolVersion);
            status.set_session_id(record_.session_id);
            status.set_part_id(record_.part.value);
            status.mutable_guest()->set_guest_pid(7);
        } else if (request.has_shutdown()) {
            was_ended_ = true;
        } else if (answer_) {
            answer_(request, &reply);
        }
        std::vector<int> descriptors;
        for (const control::UniqueFd& blob : reply.blobs) {
            descriptors.push_back(blob.get());
        }
        reply.message.set_descriptor_count(static_cast<std::uint32_t>(descriptors.size()));
        (void)socket.send_message(reply.message, descriptors);
        if (was_ended_) {
            ::kill(record_.process.pid, SIGKILL);
        }
    }

    const Stand stand_;
    const control::WorkerState state_;
    const Answer answer_;
    WorkerRecord record_;
    std::atomic<bool> hangs_up_{false};
    std::atomic<bool> tells_guest_gone_{false};
    std::atomic<bool> was_ended_{false};
    std::jthread thread_;
};

}  // namespace gantry::supervisor
