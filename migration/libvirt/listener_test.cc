// Listener and Host against libvirt's own in-process test driver: its one domain, "test", runs from
// the start and can be paused, resumed and destroyed. Migrations are tested in tests/system.
#include "migration/libvirt/listener.h"

#include <gtest/gtest.h>
#include <libvirt/libvirt.h>
#include <libvirt/virterror.h>

#include <deque>

#include "migration/libvirt/handles.h"
#include "proto/base/mutex.h"

namespace gantry::libvirt {
namespace {

constexpr char kTestUri[] = "test:///default";

class Recorder {
public:
    void operator()(DomainEvent event) {
        const MutexLock lock(mutex_);
        events_.push_back(std::move(event));
        changed_.notify_all();
    }

    /// Takes events until one of `kind`; fails the test after 10 s.
    DomainEvent next(EventKind kind) {
        MutexLock lock(mutex_);
        for (;;) {
            if (!changed_.wait_for(lock, std::chrono::seconds(10),
                                   [&]() GANTRY_REQUIRES(mutex_) { return !events_.empty(); })) {
                ADD_FAILURE() << "no event " << to_string(kind);
                return {};
            }
            DomainEvent event = std::move(events_.front());
            events_.pop_front();
            if (event.kind == kind) {
                return event;
            }
        }
    }

private:
    Mutex mutex_;
    CondVar changed_;
    std::deque<DomainEvent> events_ GANTRY_GUARDED_BY(mutex_);
};

class ListenerTest : public ::testing::Test {
protected:
    void SetUp() override {
        ASSERT_TRUE(start_event_loop().ok());
        connection_.reset(virConnectOpen(kTestUri));
        ASSERT_TRUE(connection_) << virGetLastErrorMessage();
        domain_.reset(virDomainLookupByName(connection_.get(), "test"));
        ASSERT_TRUE(domain_);
    }

    ConnectionHandle connection_;
    DomainHandle domain_;
};

TEST_F(ListenerTest, ReportsStateThenEvents) {
    Recorder recorder;
    ListenerOptions options;
    options.uri = kTestUri;
    const Listener listener(options, std::ref(recorder));

    recorder.next(EventKind::kConnected);
    const DomainEvent read = recorder.next(EventKind::kStateRead);
    EXPECT_EQ(read.name, "test");
    EXPECT_EQ(read.uuid, domain_uuid(domain_.get()));
    EXPECT_EQ(read.state, DomainState::kRunning);
    recorder.next(EventKind::kStateReadEnd);

    ASSERT_EQ(virDomainSuspend(domain_.get()), 0);
    EXPECT_EQ(recorder.next(EventKind::kSuspendedPaused).uuid, read.uuid);
    ASSERT_EQ(virDomainResume(domain_.get()), 0);
    EXPECT_EQ(recorder.next(EventKind::kResumedUnpaused).uuid, read.uuid);
}

TEST_F(ListenerTest, SaysOnceThatLibvirtIsAway) {
    Recorder recorder;
    ListenerOptions options;
    options.uri = "qemu+unix:///system?socket=/nonexistent/libvirt-sock";
    options.reconnect_interval = std::chrono::milliseconds(10);
    const Listener listener(options, std::ref(recorder));
    const DomainEvent event = recorder.next(EventKind::kDisconnected);
    EXPECT_NE(event.text.find("/nonexistent/libvirt-sock"), std::string::npos) << event.text;
}

TEST_F(ListenerTest, NoCallbackAfterTheEnd) {
    for (int i = 0; i < 20; ++i) {
        auto alive = std::make_shared<bool>(true);
        ListenerOptions options;
        options.uri = kTestUri;
        {
            const Listener listener(options, [alive](DomainEvent) { ASSERT_TRUE(*alive); });
            virDomainSuspend(domain_.get());
            virDomainResume(domain_.get());
        }
        *alive = false;
        virDomainSuspend(domain_.get());
        virDomainResume(domain_.get());
    }
}

TEST_F(ListenerTest, HostAnswersAboutADomain) {
    Host host(kTestUri);
    const auto info = host.read_domain(domain_uuid(domain_.get()));
    ASSERT_TRUE(info.ok()) << info.error().text;
    EXPECT_EQ(info->name, "test");
    EXPECT_FALSE(info->gpu.has_value());
}

TEST_F(ListenerTest, OwnerIsStamped) {
    Host host(kTestUri);
    const std::string uuid = domain_uuid(domain_.get());
    ASSERT_TRUE(host.write_owner(uuid, {"hosta:7700", "s-1", Epoch{3}}).ok());
    const auto info = host.read_domain(uuid);
    ASSERT_TRUE(info.ok()) << info.error().text;
    ASSERT_TRUE(info->owner.has_value());
    EXPECT_EQ(info->owner->daemon, "hosta:7700");
    EXPECT_EQ(info->owner->epoch, Epoch{3});
}

/// What a VM that is kept defined leaves behind when it has been migrated away or has ended.
TEST_F(ListenerTest, ADomainThatIsShutOffIsAnAnswer) {
    Host host(kTestUri);
    const std::string uuid = domain_uuid(domain_.get());
    ASSERT_EQ(virDomainDestroy(domain_.get()), 0);
    const auto report = host.report(uuid);
    ASSERT_EQ(virDomainCreate(domain_.get()), 0) << "for the other tests";
    ASSERT_TRUE(report.ok()) << report.error().text;
    EXPECT_EQ(report->state, DomainState::kAbsent);
    EXPECT_EQ(report->job.kind, JobKind::kNone);
    EXPECT_EQ(report->cause, StopCause::kOther);
}

TEST_F(ListenerTest, WhyAJobCannotBeReadIsTold) {
    const auto stats = job_stats(domain_.get());  // Which this driver cannot tell.
    ASSERT_FALSE(stats.ok());
    EXPECT_EQ(stats.error().text.find("gives no reason"), std::string::npos) << stats.error().text;
}

TEST_F(ListenerTest, AbsentDomainIsAnAnswer) {
    Host host(kTestUri);
    const std::string nobody = "00000000-0000-4000-8000-00000000dead";
    const auto report = host.report(nobody);
    ASSERT_TRUE(report.ok()) << report.error().text;
    EXPECT_EQ(report->state, DomainState::kAbsent);
    EXPECT_EQ(report->job.kind, JobKind::kNone);
    const auto info = host.read_domain(nobody);
    ASSERT_FALSE(info.ok());
    EXPECT_EQ(info.error().reason, "libvirt.no_domain");
}

}  // namespace
}  // namespace gantry::libvirt
