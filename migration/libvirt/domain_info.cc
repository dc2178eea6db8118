#include "migration/libvirt/domain_info.h"

#include <strings.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <limits>
#include <utility>
#include <vector>

#include "migration/libvirt/xml.h"
#include "proto/base/hex.h"

namespace gantry::libvirt {

namespace {

constexpr std::size_t kMaxNameBytes = 255;

Error bad(const char* reason, std::string text) {
    return Error{Code::kInvalidArgument, reason, std::move(text)};
}

/// Shortened and with control characters replaced: it goes into a one-line message.
std::string quoted(std::string_view value) {
    constexpr std::size_t kShown = 60;
    std::string result = "'";
    for (const char c : value.substr(0, kShown)) {
        result += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
    }
    return result + (value.size() > kShown ? "...'" : "'");
}

Result<std::string> parse_uuid(const std::string& value) {
    const auto uuid = from_uuid_text(value);
    const std::string text = uuid ? to_uuid_text(*uuid) : "";
    if (!uuid || ::strcasecmp(text.c_str(), value.c_str()) != 0) {
        return bad(reason::kXml, "<uuid> is " + quoted(value) + ", not a UUID with dashes");
    }
    return text;
}

Result<std::string> parse_name(std::string value) {
    const bool valid = !value.empty() && value.size() <= kMaxNameBytes &&
                       std::none_of(value.begin(), value.end(), [](char c) {
                           return static_cast<unsigned char>(c) < 0x20 || c == '/';
                       });
    if (!valid) {
        return bad(reason::kXml,
                   "<name> is " + quoted(value) + ": it must have 1 to 255 characters and no '/'");
    }
    return value;
}

/// A name that is safe as one component of a path in /dev/shm.
bool is_shmem_name(std::string_view name) {
    return !name.empty() && name.size() <= kMaxNameBytes && name.front() != '.' &&
           std::all_of(name.begin(), name.end(), [](unsigned char c) {
               return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
           });
}

/// libvirt's memory units: plain letters are powers of 1024, "KB" and so on powers of 1000.
std::optional<std::uint64_t> unit_bytes(std::string_view unit) {
    static constexpr std::array<std::pair<std::string_view, std::uint64_t>, 15> kUnits{{
        {"b", 1},
        {"bytes", 1},
        {"", 1ull << 20},
        {"k", 1ull << 10},
        {"kib", 1ull << 10},
        {"kb", 1000},
        {"m", 1ull << 20},
        {"mib", 1ull << 20},
        {"mb", 1000 * 1000},
        {"g", 1ull << 30},
        {"gib", 1ull << 30},
        {"gb", 1000ull * 1000 * 1000},
        {"t", 1ull << 40},
        {"tib", 1ull << 40},
        {"tb", 1000ull * 1000 * 1000 * 1000},
    }};
    std::string lower(unit);
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    for (const auto& [name, bytes] : kUnits) {
        if (name == lower) {
            return bytes;
        }
    }
    return std::nullopt;
}

Result<std::uint64_t> parse_region_bytes(const xmlNode* shmem, const std::string& name) {
    const xmlNode* size = xml::child(shmem, "size");
    if (size == nullptr) {
        return bad(reason::kRegion, "<shmem name=" + quoted(name) + "> has no <size>");
    }
    const std::string unit = xml::attribute(size, "unit").value_or("");
    const auto factor = unit_bytes(unit);
    const auto number = xml::parse_number(xml::text(size), kMaxRegionBytes);
    if (!factor || !number || *number == 0 || *number > kMaxRegionBytes / *factor) {
        return bad(reason::kRegion, "<shmem name=" + quoted(name) + "> has the size " +
                                        quoted(xml::text(size) + " " + unit) +
                                        ": give 1 M to 64 G");
    }
    const std::uint64_t bytes = *number * *factor;
    if (!std::has_single_bit(bytes)) {
        return bad(reason::kRegion, "<shmem name=" + quoted(name) + "> has " +
                                        std::to_string(bytes) +
                                        " bytes: the size must be a power of two");
    }
    return bytes;
}

Result<RegionDevice> parse_region(const xmlNode* domain, const std::optional<std::string>& wanted) {
    const xmlNode* devices = xml::child(domain, "devices");
    const xmlNode* found = nullptr;
    for (const xmlNode* node = xml::child(devices, "shmem"); node != nullptr;
         node = xml::child(devices, "shmem", "", node)) {
        const bool fits = !wanted || xml::attribute(node, "name") == wanted;
        if (fits && found != nullptr) {
            return bad(reason::kRegion,
                       "there are several <shmem> devices that could be Gantry's: name one with "
                       "<region shmem='...'/>");
        }
        found = fits ? node : found;
    }
    if (found == nullptr) {
        return bad(reason::kRegion, wanted ? "there is no <shmem name=" + quoted(*wanted) + ">"
                                           : "there is no <shmem> device: Gantry needs one");
    }
    RegionDevice region;
    region.shmem_name = xml::attribute(found, "name").value_or("");
    if (!is_shmem_name(region.shmem_name)) {
        return bad(reason::kRegion, "the <shmem> name " + quoted(region.shmem_name) +
                                        " is not usable: letters, digits, '.', '-' and '_' only");
    }
    if (xml::attribute(found, "role") != "master") {
        return bad(reason::kRegion, "<shmem name=" + quoted(region.shmem_name) +
                                        "> cannot migrate: it needs role='master'");
    }
    const std::string model = xml::attribute(xml::child(found, "model"), "type").value_or("(none)");
    if (model != "ivshmem-plain") {
        return bad(reason::kRegion, "<shmem name=" + quoted(region.shmem_name) +
                                        "> has the model " + quoted(model) +
                                        ": it must be 'ivshmem-plain'");
    }
    GANTRY_ASSIGN(region.region_bytes, parse_region_bytes(found, region.shmem_name));
    region.path = "/dev/shm/" + region.shmem_name;
    return region;
}

Result<void> parse_cc_min(const xmlNode* needs, GpuNeeds* result) {
    const auto value = xml::attribute(needs, "cc_min");
    if (!value) {
        return {};
    }
    const std::size_t dot = value->find('.');
    const std::string_view all = *value;
    const auto major = xml::parse_number(all.substr(0, dot), 99);
    const auto minor = xml::parse_number(dot == std::string::npos ? "" : all.substr(dot + 1), 99);
    if (!major || !minor) {
        return bad(reason::kMetadata, "<needs cc_min=" + quoted(*value) +
                                          ">: give a compute capability such as '9.0'");
    }
    result->cc_min_major = static_cast<std::uint32_t>(*major);
    result->cc_min_minor = static_cast<std::uint32_t>(*minor);
    return {};
}

/// What one element of the operator's metadata may hold; each child at most once.
struct ElementShape {
    const char* name;
    std::vector<std::string_view> attributes;
    std::vector<ElementShape> children;
};

const ElementShape& gpu_shape() {
    static const ElementShape shape{"gpu",
                                    {},
                                    {{"needs", {"memory_mib", "cc_min"}, {}},
                                     {"region", {"shmem"}, {}},
                                     {"tcp", {"key"}, {}},
                                     {"share", {"priority", "weight"}, {}},
                                     {"device", {"number", "uuid", "model"}, {}}}};
    return shape;
}

/// "'a', 'b'", or "none".
std::string listed(const std::vector<std::string_view>& names) {
    std::string result;
    for (const std::string_view name : names) {
        result += (result.empty() ? "" : ", ") + quoted(name);
    }
    return result.empty() ? "none" : result;
}

std::string_view local_name(const xmlChar* name) { return reinterpret_cast<const char*>(name); }

bool is_ours(const xmlNs* ns) { return ns != nullptr && local_name(ns->href) == kNeedsNamespace; }

/// Refuses what would be passed over in silence: an operator who misspells a limit must not run
/// without it.
Result<void> check_shape(const xmlNode* element, const ElementShape& shape) {
    const std::string where = std::string("Gantry's <") + shape.name + "> metadata ";
    for (const xmlAttr* one = element->properties; one != nullptr; one = one->next) {
        const std::string_view name = local_name(one->name);
        if (one->ns != nullptr || std::ranges::count(shape.attributes, name) == 0) {
            return bad(reason::kMetadata, where + "has the unknown attribute " + quoted(name) +
                                              "; known are: " + listed(shape.attributes));
        }
    }
    std::vector<std::string_view> seen;
    std::vector<std::string_view> known;
    for (const ElementShape& child : shape.children) {
        known.emplace_back(child.name);
    }
    for (const xmlNode* node = element->children; node != nullptr; node = node->next) {
        if (node->type == XML_COMMENT_NODE || xmlIsBlankNode(node) != 0) {
            continue;
        }
        if (node->type != XML_ELEMENT_NODE) {
            return bad(reason::kMetadata, where + "holds text: everything is in attributes");
        }
        const std::string_view name = local_name(node->name);
        const auto child = std::ranges::find(known, name);
        if (!is_ours(node->ns) || child == known.end()) {
            return bad(reason::kMetadata, where + "has the unknown element " + quoted(name) +
                                              "; known are, of the namespace " + kNeedsNamespace +
                                              ": " + listed(known));
        }
        if (std::ranges::count(seen, name) != 0) {
            return bad(reason::kMetadata, where + "has several elements " + quoted(name));
        }
        seen.push_back(name);
        GANTRY_TRY(
            check_shape(node, shape.children[static_cast<std::size_t>(child - known.begin())]));
    }
    return {};
}

/// The one <gpu> of the metadata, nullptr where there is none; nothing else there may be of our
/// namespace.
Result<const xmlNode*> find_gpu(const xmlNode* metadata) {
    const xmlNode* gpu = nullptr;
    for (const xmlNode* node = metadata == nullptr ? nullptr : metadata->children; node != nullptr;
         node = node->next) {
        if (node->type != XML_ELEMENT_NODE || !is_ours(node->ns)) {
            continue;
        }
        if (local_name(node->name) != "gpu" || gpu != nullptr) {
            return bad(reason::kMetadata, "<metadata> has the element " +
                                              quoted(local_name(node->name)) +
                                              " of the namespace " + kNeedsNamespace +
                                              ": there can be one, and its name is 'gpu'");
        }
        gpu = node;
    }
    return gpu;
}

Result<GpuShare> parse_share(const xmlNode* share) {
    GpuShare result;
    const auto read = [&](const char* name, std::uint64_t low, std::uint64_t high,
                          std::uint32_t* out) -> Result<void> {
        const auto text = xml::attribute(share, name);
        const auto number = text ? xml::parse_number(*text, high) : std::nullopt;
        if (text && (!number || *number < low)) {
            return bad(reason::kMetadata, std::string("<share ") + name + "=" + quoted(*text) +
                                              ">: give a whole number from " + std::to_string(low) +
                                              " to " + std::to_string(high));
        }
        if (number) {
            *out = static_cast<std::uint32_t>(*number);
        }
        return {};
    };
    GANTRY_TRY(read("priority", 0, 9, &result.priority));
    GANTRY_TRY(read("weight", 1, 1000, &result.weight));
    return result;
}

/// As `nvidia-smi -L` prints it: "GPU-", 32 hex digits with dashes; the digits.
std::string uuid_digits(std::string_view text) {
    constexpr std::string_view kPrefix = "GPU-";
    std::string digits;
    for (const char c : text.substr(text.starts_with(kPrefix) ? kPrefix.size() : 0)) {
        if (c != '-') {
            digits += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        }
    }
    return from_hex<16>(digits) ? digits : "";
}

Result<GpuWish> parse_device(const xmlNode* device) {
    GpuWish result;
    if (const auto text = xml::attribute(device, "number")) {
        const auto number = xml::parse_number(*text, kMaxGpuNumber);
        if (!number) {
            return bad(reason::kMetadata, "<device number=" + quoted(*text) +
                                              ">: give a GPU's number on its host, 0 to " +
                                              std::to_string(kMaxGpuNumber));
        }
        result.number = static_cast<std::uint32_t>(*number);
    }
    if (const auto text = xml::attribute(device, "uuid")) {
        result.uuid = uuid_digits(*text);
        if (result.uuid.empty()) {
            return bad(reason::kMetadata, "<device uuid=" + quoted(*text) +
                                              ">: give a GPU's UUID as `nvidia-smi -L` prints it");
        }
    }
    if (const auto text = xml::attribute(device, "model")) {
        result.model = *text;
        if (text->empty() || text->size() > kMaxNameBytes) {
            return bad(reason::kMetadata,
                       "<device model=" + quoted(*text) + ">: give a part of a GPU's name");
        }
    }
    if (result.is_any()) {
        return bad(reason::kMetadata,
                   "Gantry's <device> metadata names no GPU: give number, uuid or model, or leave "
                   "the element out");
    }
    return result;
}

Result<GpuNeeds> parse_gpu(const xmlNode* domain, const xmlNode* gpu) {
    GANTRY_TRY(check_shape(gpu, gpu_shape()));
    const xmlNode* needs = xml::child(gpu, "needs", kNeedsNamespace);
    if (needs == nullptr) {
        return bad(reason::kMetadata,
                   "Gantry's <gpu> metadata has no <needs memory_mib='...'/> element");
    }
    GpuNeeds result;
    const std::string memory = xml::attribute(needs, "memory_mib").value_or("");
    const auto mib = xml::parse_number(memory, kMaxGpuMemoryMib);
    if (!mib || *mib == 0) {
        return bad(reason::kMetadata, "<needs memory_mib=" + quoted(memory) +
                                          ">: give the GPU memory in MiB, 1 to " +
                                          std::to_string(kMaxGpuMemoryMib));
    }
    result.memory_mib = *mib;
    GANTRY_TRY(parse_cc_min(needs, &result));
    if (const xmlNode* share = xml::child(gpu, "share", kNeedsNamespace)) {
        GANTRY_ASSIGN(result.share, parse_share(share));
    }
    if (const xmlNode* device = xml::child(gpu, "device", kNeedsNamespace)) {
        GANTRY_ASSIGN(result.wish, parse_device(device));
    }
    const xmlNode* region = xml::child(gpu, "region", kNeedsNamespace);
    if (const xmlNode* tcp = xml::child(gpu, "tcp", kNeedsNamespace)) {
        if (region != nullptr) {
            return bad(reason::kMetadata,
                       "Gantry's <gpu> metadata has both <tcp> and <region>: a VM's programs reach "
                       "the GPU over one of them");
        }
        result.guest_key = xml::attribute(tcp, "key").value_or("");
        if (!from_hex<32>(result.guest_key)) {
            return bad(reason::kMetadata,
                       "<tcp key='...'> needs 64 hex digits, as `openssl rand -hex 32` prints");
        }
        return result;
    }
    GANTRY_ASSIGN(
        result.region,
        parse_region(domain, region == nullptr ? std::nullopt : xml::attribute(region, "shmem")));
    return result;
}

/// "HOST:PORT" with a port from 1 to 65535; an IPv6 address stands in brackets.
bool is_daemon_address(std::string_view value) {
    const std::size_t colon = value.rfind(':');
    if (colon == std::string_view::npos || colon == 0 || value.size() > kMaxNameBytes) {
        return false;
    }
    const auto port = xml::parse_number(value.substr(colon + 1), 65535);
    const std::string_view host = value.substr(0, colon);
    const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
    return port && *port != 0 && std::all_of(host.begin(), host.end(), [&](unsigned char c) {
               return std::isalnum(c) != 0 || c == '-' || c == '.' ||
                      (bracketed && (c == '[' || c == ']' || c == ':'));
           });
}

bool is_session(std::string_view value) {
    return !value.empty() && value.size() <= kMaxNameBytes &&
           std::all_of(value.begin(), value.end(), [](unsigned char c) {
               return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
           });
}

Result<Owner> parse_owner(const xmlNode* node) {
    Owner owner;
    owner.daemon = xml::attribute(node, "daemon").value_or("");
    owner.session = xml::attribute(node, "session").value_or("");
    const std::string epoch = xml::attribute(node, "epoch").value_or("");
    const auto number = xml::parse_number(epoch, std::numeric_limits<std::uint64_t>::max());
    if (!is_daemon_address(owner.daemon)) {
        return bad(reason::kOwner,
                   "<owner daemon=" + quoted(owner.daemon) + "> is not ADDRESS:PORT of a gantryd");
    }
    if (!is_session(owner.session)) {
        return bad(reason::kOwner,
                   "<owner session=" + quoted(owner.session) + "> is no session id");
    }
    if (!number) {
        return bad(reason::kOwner, "<owner epoch=" + quoted(epoch) + "> is not a number");
    }
    owner.epoch = Epoch{*number};
    if (const auto text = xml::attribute(node, "ticket")) {
        const auto ticket = Ticket::parse(*text);
        if (!ticket) {
            return bad(reason::kOwner, "<owner ticket='...'> is not 32 hexadecimal digits");
        }
        owner.ticket = *ticket;
    }
    return owner;
}

}  // namespace

Result<DomainInfo> parse_domain_xml(std::string_view text) {
    GANTRY_ASSIGN(const xml::Document document, xml::parse(text, kMaxDomainXmlBytes, reason::kXml));
    const xmlNode* domain = xmlDocGetRootElement(document.get());
    if (!xml::is_element(domain, "domain")) {
        return bad(reason::kXml, "the XML is not a libvirt <domain>");
    }
    DomainInfo info;
    const xmlNode* name = xml::child(domain, "name");
    const xmlNode* uuid = xml::child(domain, "uuid");
    GANTRY_ASSIGN(info.name, parse_name(name == nullptr ? "" : xml::text(name)));
    GANTRY_ASSIGN(info.uuid, parse_uuid(uuid == nullptr ? "" : xml::text(uuid)));
    const xmlNode* metadata = xml::child(domain, "metadata");
    GANTRY_ASSIGN(const xmlNode* gpu, find_gpu(metadata));
    if (gpu != nullptr) {
        GANTRY_ASSIGN(info.gpu, parse_gpu(domain, gpu));
        if (!info.gpu->guest_key.empty()) {
            RegionDevice& region = info.gpu->region;
            region.shmem_name = "gantry-tcp-" + info.uuid;
            region.path = "/dev/shm/" + region.shmem_name;
            region.region_bytes = kTcpRegionBytes;
        }
    }
    if (const xmlNode* owner = xml::child(metadata, "owner", kOwnerNamespace)) {
        GANTRY_ASSIGN(info.owner, parse_owner(owner));
    }
    return info;
}

Result<std::string> owner_xml(const Owner& owner) {
    if (!is_daemon_address(owner.daemon) || !is_session(owner.session)) {
        return bad(reason::kOwner, "cannot stamp the owner " + quoted(owner.daemon) + ", session " +
                                       quoted(owner.session) + ": not ADDRESS:PORT or not an id");
    }
    const std::string ticket =
        owner.ticket.exists() ? " ticket='" + owner.ticket.reveal() + "'" : std::string();
    return "<owner daemon='" + owner.daemon + "' session='" + owner.session + "' epoch='" +
           std::to_string(owner.epoch.value) + "'" + ticket + "/>";
}

}  // namespace gantry::libvirt
