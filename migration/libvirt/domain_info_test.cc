#include "migration/libvirt/domain_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gantry::libvirt {
namespace {

using ::testing::HasSubstr;

constexpr char kUuid[] = "11111111-0000-4000-8000-00000000000a";

std::string needs(const std::string& attributes) {
    return "<gantry:gpu xmlns:gantry='urn:gantry:vm:1'><gantry:needs " + attributes +
           "/></gantry:gpu>";
}

std::string shmem(
    const std::string& name = "gantry-g1", const std::string& attributes = "role='master'",
    const std::string& body = "<model type='ivshmem-plain'/><size unit='M'>64</size>") {
    return "<shmem name='" + name + "' " + attributes + ">" + body + "</shmem>";
}

std::string domain(const std::string& metadata, const std::string& devices = shmem()) {
    return std::string("<domain type='qemu'><name>g1</name><uuid>") + kUuid + "</uuid><metadata>" +
           metadata + "</metadata><devices><disk/>" + devices + "</devices></domain>";
}

std::string owner(const std::string& attributes) {
    return "<o:owner xmlns:o='urn:gantry:owner:1' " + attributes + "/>";
}

void expect_refused(const std::string& xml, const std::string& reason_id, const std::string& text) {
    const auto result = parse_domain_xml(xml);
    ASSERT_FALSE(result.ok()) << xml;
    EXPECT_EQ(result.error().reason, reason_id) << result.error().text;
    EXPECT_EQ(result.error().code, Code::kInvalidArgument);
    EXPECT_THAT(result.error().text, HasSubstr(text));
    EXPECT_EQ(result.error().text.find('\n'), std::string::npos);
}

TEST(DomainInfo, ReadsNeedsRegionAndOwner) {
    const auto info = parse_domain_xml(
        domain(needs("memory_mib='1024' cc_min='9.0'") +
               owner("daemon='10.77.0.1:7700' session='s-42' epoch='18446744073709551615'")));
    ASSERT_TRUE(info.ok()) << info.error().text;
    EXPECT_EQ(info->name, "g1");
    EXPECT_EQ(info->uuid, kUuid);
    ASSERT_TRUE(info->gpu.has_value());
    EXPECT_EQ(info->gpu->memory_mib, 1024u);
    EXPECT_EQ(info->gpu->cc_min_major, 9u);
    EXPECT_EQ(info->gpu->cc_min_minor, 0u);
    EXPECT_EQ(info->gpu->region.path, "/dev/shm/gantry-g1");
    EXPECT_EQ(info->gpu->region.region_bytes, 64u << 20);
    ASSERT_TRUE(info->owner.has_value());
    EXPECT_EQ(info->owner->daemon, "10.77.0.1:7700");
    EXPECT_EQ(info->owner->session, "s-42");
    EXPECT_EQ(info->owner->epoch.value, 18446744073709551615ull);
}

TEST(DomainInfo, AVmMayNameTheGpuThatItIsToBeOn) {
    const auto wishing = [](const std::string& attributes) {
        return domain("<g:gpu xmlns:g='urn:gantry:vm:1'><g:needs memory_mib='1'/><g:device " +
                      attributes + "/></g:gpu>");
    };
    const auto wish_of = [&](const std::string& attributes) {
        const auto info = parse_domain_xml(wishing(attributes));
        EXPECT_TRUE(info.ok()) << info.error().text;
        return info.ok() && info->gpu ? info->gpu->wish : GpuWish{};
    };
    EXPECT_EQ(wish_of("number='3'"), (GpuWish{3, "", ""}));
    EXPECT_EQ(wish_of("model='H100 PCIe'"), (GpuWish{std::nullopt, "", "H100 PCIe"}));
    const std::string digits = "67616e74727940328030000000000abc";
    for (const char* uuid :
         {"GPU-67616e74-7279-4032-8030-000000000ABC", "67616e74-7279-4032-8030-000000000abc"}) {
        EXPECT_EQ(wish_of(std::string("number='0' uuid='") + uuid + "'"), (GpuWish{0, digits, ""}));
    }
    const auto none = parse_domain_xml(domain(needs("memory_mib='1'")));
    ASSERT_TRUE(none.ok() && none->gpu);
    EXPECT_TRUE(none->gpu->wish.is_any());
    expect_refused(wishing(""), reason::kMetadata, "names no GPU");
    expect_refused(wishing("number='256'"), reason::kMetadata, "0 to 255");
    expect_refused(wishing("number=''"), reason::kMetadata, "0 to 255");
    expect_refused(wishing("uuid='GPU-12'"), reason::kMetadata, "nvidia-smi -L");
    expect_refused(wishing("model=''"), reason::kMetadata, "a part of a GPU's name");
    expect_refused(wishing("index='1'"), reason::kMetadata, "'number', 'uuid', 'model'");
}

TEST(DomainInfo, AVmOverTcpHasAKeyAndNoDevice) {
    const std::string key(64, 'a');
    const auto metadata = [](const std::string& tcp) {
        return "<gantry:gpu xmlns:gantry='urn:gantry:vm:1'><gantry:needs memory_mib='64'/>" + tcp +
               "</gantry:gpu>";
    };
    const auto info = parse_domain_xml(domain(metadata("<gantry:tcp key='" + key + "'/>"), ""));
    ASSERT_TRUE(info.ok()) << info.error().text;
    EXPECT_EQ(info->gpu->guest_key, key);
    EXPECT_EQ(info->gpu->region.path, std::string("/dev/shm/gantry-tcp-") + kUuid);
    EXPECT_EQ(info->gpu->region.region_bytes, kTcpRegionBytes);
    for (const std::string& wrong :
         {std::string("<gantry:tcp/>"), "<gantry:tcp key='" + key + "a'/>",
          "<gantry:tcp key='" + key.substr(1) + "g'/>"}) {
        expect_refused(domain(metadata(wrong), ""), reason::kMetadata, "64 hex digits");
    }
}

TEST(DomainInfo, VmWithoutOurMetadataIsNotOurs) {
    for (const std::string metadata : {"", "<x:gpu xmlns:x='urn:other'/>", "<gpu/>"}) {
        const auto info = parse_domain_xml(domain(metadata, ""));
        ASSERT_TRUE(info.ok()) << info.error().text;
        EXPECT_FALSE(info->gpu.has_value());
        EXPECT_FALSE(info->owner.has_value());
    }
}

TEST(DomainInfo, UuidIsLowerCased) {
    std::string xml = domain("");
    xml.replace(xml.find("00000000000a"), 12, "00000000000A");
    const auto info = parse_domain_xml(xml);
    ASSERT_TRUE(info.ok());
    EXPECT_EQ(info->uuid, kUuid);
}

TEST(DomainInfo, RegionIsChosenByNameAmongSeveral) {
    const std::string two = shmem("other") + shmem("gantry-g1");
    expect_refused(domain(needs("memory_mib='1'"), two), reason::kRegion, "several");
    const auto info =
        parse_domain_xml(domain("<g:gpu xmlns:g='urn:gantry:vm:1'><g:needs memory_mib='1'/>"
                                "<g:region shmem='gantry-g1'/></g:gpu>",
                                two));
    ASSERT_TRUE(info.ok()) << info.error().text;
    EXPECT_EQ(info->gpu->region.shmem_name, "gantry-g1");
}

TEST(DomainInfo, SizesInLibvirtsUnits) {
    const auto bytes = [](const std::string& size) {
        const auto info = parse_domain_xml(
            domain(needs("memory_mib='1'"),
                   shmem("a", "role='master'", "<model type='ivshmem-plain'/>" + size)));
        return info.ok() ? info->gpu->region.region_bytes : 0;
    };
    EXPECT_EQ(bytes("<size unit='MiB'>32</size>"), 32u << 20);
    EXPECT_EQ(bytes("<size>4</size>"), 4u << 20);
    EXPECT_EQ(bytes("<size unit='K'> 1024 </size>"), 1u << 20);
    EXPECT_EQ(bytes("<size unit='GiB'>1</size>"), 1u << 30);
    EXPECT_EQ(bytes("<size unit='M'>33</size>"), 0u);
    EXPECT_EQ(bytes("<size unit='M'>-1</size>"), 0u);
    EXPECT_EQ(bytes("<size unit='M'>0</size>"), 0u);
    EXPECT_EQ(bytes("<size unit='parsec'>1</size>"), 0u);
    EXPECT_EQ(bytes("<size unit='TiB'>17592186044416</size>"), 0u);
    EXPECT_EQ(bytes(""), 0u);
}

TEST(DomainInfo, RefusesWrongNeeds) {
    expect_refused(domain("<g:gpu xmlns:g='urn:gantry:vm:1'/>"), reason::kMetadata, "<needs");
    expect_refused(domain(needs("")), reason::kMetadata, "memory_mib");
    for (const char* value : {"0", "-1", "+1", "1.5", " 1", "0x10", "99999999999999999999"}) {
        expect_refused(domain(needs(std::string("memory_mib='") + value + "'")), reason::kMetadata,
                       "memory_mib");
    }
    for (const char* value : {"", "9", "9.", ".0", "9.0.1", "9.a", "-9.0"}) {
        expect_refused(domain(needs(std::string("memory_mib='1' cc_min='") + value + "'")),
                       reason::kMetadata, "cc_min");
    }
}

TEST(DomainInfo, ReadsAShareAndRefusesOthersByName) {
    const auto shared = [](const std::string& attributes) {
        return domain("<g:gpu xmlns:g='urn:gantry:vm:1'><g:needs memory_mib='1'/><g:share " +
                      attributes + "/></g:gpu>");
    };
    const auto share_of = [&](const std::string& attributes) {
        const auto info = parse_domain_xml(shared(attributes));
        EXPECT_TRUE(info.ok()) << attributes;
        return info.ok() && info->gpu ? info->gpu->share : std::nullopt;
    };
    EXPECT_EQ(share_of("priority='9' weight='1000'"), (GpuShare{9, 1000}));
    EXPECT_EQ(share_of("priority='0'"), (GpuShare{0, 100}));
    EXPECT_EQ(share_of("weight='1'"), (GpuShare{4, 1}));
    EXPECT_EQ(share_of(""), GpuShare{});
    const auto none = parse_domain_xml(domain(needs("memory_mib='1'")));
    ASSERT_TRUE(none.ok());
    EXPECT_EQ(none->gpu->share, std::nullopt);
    for (const char* value : {"10", "-1", "", "high", "1.5"}) {
        expect_refused(shared(std::string("priority='") + value + "'"), reason::kMetadata,
                       "<share priority=");
    }
    for (const char* value : {"0", "1001", "-1", ""}) {
        expect_refused(shared(std::string("weight='") + value + "'"), reason::kMetadata,
                       "<share weight=");
    }
    expect_refused(shared("prio='1'"), reason::kMetadata,
                   "unknown attribute 'prio'; known are: 'priority', 'weight'");
}

TEST(DomainInfo, RefusesMetadataThatItDoesNotKnow) {
    const auto gpu = [](const std::string& inside, const std::string& attributes = "") {
        return domain("<g:gpu xmlns:g='urn:gantry:vm:1' " + attributes + ">" + inside + "</g:gpu>");
    };
    const std::string good = "<g:needs memory_mib='1'/>";
    ASSERT_TRUE(parse_domain_xml(gpu("\n <!-- why -->" + good + "\n")).ok());
    expect_refused(gpu("<g:needs memory_mib='1' cc_mim='9.0'/>"), reason::kMetadata,
                   "<needs> metadata has the unknown attribute 'cc_mim'; known are: 'memory_mib', "
                   "'cc_min'");
    expect_refused(gpu("<g:needs memory_mib='1' g:cc_min='9.0'/>"), reason::kMetadata, "'cc_min'");
    expect_refused(gpu(good + "<g:region shm='gantry-g1'/>"), reason::kMetadata,
                   "<region> metadata has the unknown attribute 'shm'; known are: 'shmem'");
    expect_refused(gpu(good + "<g:regoin shmem='gantry-g1'/>"), reason::kMetadata,
                   "<gpu> metadata has the unknown element 'regoin'");
    expect_refused(gpu(good + "<region shmem='gantry-g1'/>"), reason::kMetadata,
                   "known are, of the namespace urn:gantry:vm:1: 'needs', 'region', 'tcp'");
    expect_refused(gpu(good, "memory_mib='2'"), reason::kMetadata, "known are: none");
    expect_refused(gpu("<g:needs memory_mib='1'><g:cc_min/></g:needs>"), reason::kMetadata,
                   "<needs> metadata has the unknown element 'cc_min'");
    expect_refused(gpu(good + good), reason::kMetadata, "several elements 'needs'");
    expect_refused(gpu("memory_mib=1" + good), reason::kMetadata, "holds text");
    expect_refused(gpu(good + "<g:region/><g:tcp key='" + std::string(64, 'a') + "'/>"),
                   reason::kMetadata, "both <tcp> and <region>");
    expect_refused(domain("<g:gpus xmlns:g='urn:gantry:vm:1'>" + good + "</g:gpus>"),
                   reason::kMetadata, "the element 'gpus' of the namespace urn:gantry:vm:1");
}

TEST(DomainInfo, RefusesRegionsThatCannotWork) {
    const std::string ours = needs("memory_mib='1'");
    const std::string plain = "<model type='ivshmem-plain'/><size unit='M'>64</size>";
    expect_refused(domain(ours, ""), reason::kRegion, "no <shmem>");
    expect_refused(domain(ours, shmem("a", "")), reason::kRegion, "role='master'");
    expect_refused(domain(ours, shmem("a", "role='peer'")), reason::kRegion, "role='master'");
    expect_refused(
        domain(ours, shmem("a", "role='master'", "<model type='ivshmem-doorbell'/><size>4</size>")),
        reason::kRegion, "ivshmem-plain");
    for (const char* name : {"", ".", "..", "../etc/shadow", "a/b", "a b", "-%s\n"}) {
        expect_refused(domain(ours, shmem(name, "role='master'", plain)), reason::kRegion, "name");
    }
}

TEST(DomainInfo, RefusesWrongOwners) {
    const auto bad_owner = [](const std::string& daemon, const std::string& session,
                              const std::string& epoch) {
        return domain(
            owner("daemon='" + daemon + "' session='" + session + "' epoch='" + epoch + "'"));
    };
    for (const char* daemon : {"", "host", ":1", "host:", "host:0", "host:65536", "a b:1",
                               "::1:7700", "host:1/x", "-h;reboot:1"}) {
        expect_refused(bad_owner(daemon, "s", "1"), reason::kOwner, "daemon");
    }
    expect_refused(bad_owner("h:1", "", "1"), reason::kOwner, "session");
    expect_refused(bad_owner("h:1", "a b", "1"), reason::kOwner, "session");
    expect_refused(bad_owner("h:1", "s", ""), reason::kOwner, "epoch");
    expect_refused(bad_owner("h:1", "s", "18446744073709551616"), reason::kOwner, "epoch");
    EXPECT_TRUE(parse_domain_xml(bad_owner("[fe80::1]:7700", "s", "1")).ok());
}

TEST(DomainInfo, ATicketIsReadWrittenAndNeverTold) {
    const std::string digits = "00112233445566778899aabbccddeeff";
    const auto with_ticket = [](const std::string& ticket) {
        return domain(owner("daemon='h:1' session='s' epoch='1' ticket='" + ticket + "'"));
    };
    const auto info = parse_domain_xml(with_ticket(digits));
    ASSERT_TRUE(info.ok()) << info.error().text;
    EXPECT_EQ(info->owner->ticket.reveal(), digits);
    const auto written = owner_xml(*info->owner);
    ASSERT_TRUE(written.ok());
    EXPECT_THAT(*written, HasSubstr("ticket='" + digits + "'"));
    const auto none = parse_domain_xml(domain(owner("daemon='h:1' session='s' epoch='1'")));
    ASSERT_TRUE(none.ok()) << "an older release stamps none";
    EXPECT_FALSE(none->owner->ticket.exists());
    for (const std::string& wrong : {std::string(""), digits.substr(1), digits + "0",
                                     "g" + digits.substr(1), std::string(32, '0')}) {
        expect_refused(with_ticket(wrong), reason::kOwner, "<owner ticket='...'>");
        if (!wrong.empty()) {
            EXPECT_EQ(parse_domain_xml(with_ticket(wrong)).error().text.find(wrong),
                      std::string::npos);
        }
    }
}

TEST(DomainInfo, RefusesWhatIsNotADomain) {
    expect_refused("", reason::kXml, "cannot be read");
    expect_refused("no xml", reason::kXml, "cannot be read");
    expect_refused("<network/>", reason::kXml, "<domain>");
    expect_refused("<x:domain xmlns:x='urn:x'/>", reason::kXml, "<domain>");
    expect_refused("<domain/>", reason::kXml, "<name>");
    expect_refused("<domain><name>a/b</name></domain>", reason::kXml, "<name>");
    expect_refused("<domain><name>a</name><uuid>12</uuid></domain>", reason::kXml, "UUID");
    expect_refused(std::string(kMaxDomainXmlBytes + 1, ' '), reason::kXml, "more than");
}

TEST(DomainInfo, RefusesDocumentTypesAndTheirEntities) {
    const std::string body = domain("");
    expect_refused("<!DOCTYPE domain [<!ENTITY a 'b'>]>" + body, reason::kXml, "document type");
    expect_refused("<!DOCTYPE domain SYSTEM 'file:///etc/passwd'>" + body, reason::kXml,
                   "document type");
    std::string bomb = "<!DOCTYPE domain [<!ENTITY a0 'aaaaaaaaaa'>";
    for (int i = 1; i < 10; ++i) {
        const std::string inner = "&a" + std::to_string(i - 1) + ";";
        bomb += "<!ENTITY a" + std::to_string(i) + " '";
        for (int j = 0; j < 10; ++j) {
            bomb += inner;
        }
        bomb += "'>";
    }
    EXPECT_FALSE(parse_domain_xml(bomb + "]><domain><name>&a9;</name></domain>").ok());
}

TEST(DomainInfo, RefusesEndlessNesting) {
    std::string xml = "<domain>";
    for (int i = 0; i < 100000; ++i) {
        xml += "<a>";
    }
    EXPECT_FALSE(parse_domain_xml(xml).ok());
}

TEST(DomainInfo, SurvivesEveryTruncationAndEveryChangedByte) {
    const std::string xml = domain(needs("memory_mib='1024' cc_min='9.0'") +
                                   owner("daemon='h:1' session='s' epoch='1'"));
    for (std::size_t length = 0; length < xml.size(); ++length) {
        EXPECT_FALSE(parse_domain_xml(std::string_view(xml).substr(0, length)).ok()) << length;
    }
    for (std::size_t i = 0; i < xml.size(); ++i) {
        for (const char byte : {'\0', '<', '>', '\'', '&', '\xff', '0', ' '}) {
            std::string changed = xml;
            changed[i] = byte;
            const auto info = parse_domain_xml(changed);  // Either way, but no crash and no lie:
            if (info.ok() && info->gpu) {
                EXPECT_GT(info->gpu->memory_mib, 0u);
                EXPECT_EQ(info->gpu->region.path, "/dev/shm/" + info->gpu->region.shmem_name);
            }
        }
    }
}

TEST(Owner, ElementRoundTrip) {
    const auto text = owner_xml({"hosta:7700", "11111111-0000", Epoch{7}});
    ASSERT_TRUE(text.ok());
    std::string stamped = *text;  // libvirt adds the namespace.
    stamped.insert(stamped.find(' '), " xmlns='urn:gantry:owner:1'");
    const auto back = parse_domain_xml(domain(stamped, ""));
    ASSERT_TRUE(back.ok()) << back.error().text;
    ASSERT_TRUE(back->owner.has_value());
    EXPECT_EQ(back->owner->daemon, "hosta:7700");
    EXPECT_EQ(back->owner->session, "11111111-0000");
    EXPECT_EQ(back->owner->epoch, Epoch{7});
}

TEST(Owner, RefusesToWriteWhatCouldNotBeRead) {
    EXPECT_FALSE(owner_xml({"no port", "s", Epoch{1}}).ok());
    EXPECT_FALSE(owner_xml({"h:1", "'/><evil a='", Epoch{1}}).ok());
}

}  // namespace
}  // namespace gantry::libvirt
