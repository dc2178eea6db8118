// Listener: delivers a libvirt host's events as DomainEvent, across restarts of libvirtd.
//
// Threads: the callback runs on one of the listener's two threads, one call at a time; it must
// return quickly (queue the event), and may not call libvirt or destroy the listener.
// Order: events of one connection come in libvirt's order. After every (re)connect: kConnected,
// one kStateRead per running domain (events that arrive meanwhile may lie between them),
// kStateReadEnd. Between kDisconnected and kConnected events are lost; the state read makes up
// for it.
// Failure: never gives up; tries again every reconnect interval and says so with kDisconnected
// once. Cost: two sleeping threads; from QEMU's own time stamp to the callback about 1 ms.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "migration/libvirt/events.h"
#include "migration/libvirt/host.h"

namespace gantry::libvirt {

struct ListenerOptions {
    std::string uri = kDefaultUri;
    std::chrono::milliseconds reconnect_interval{500};
    /// Keepalive: a silent libvirtd is given up after interval * (count + 1).
    int keepalive_interval_s = 5;
    unsigned keepalive_count = 4;
};

class Listener {
public:
    using Callback = std::function<void(DomainEvent)>;

    Listener(ListenerOptions options, Callback callback);
    ~Listener();  ///< Stops; no callback runs after it has returned.
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;

private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace gantry::libvirt
