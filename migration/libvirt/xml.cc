#include "migration/libvirt/xml.h"

#include <libxml/tree.h>

#include <charconv>
#include <mutex>

namespace gantry::libvirt::xml {

namespace {

std::string_view view(const xmlChar* text) {
    return text == nullptr ? std::string_view{} : reinterpret_cast<const char*>(text);
}

std::string take(xmlChar* text) {
    std::string result(view(text));
    xmlFree(text);
    return result;
}

struct FreeContext {
    void operator()(xmlParserCtxt* context) const noexcept { xmlFreeParserCtxt(context); }
};

std::string parse_failure(xmlParserCtxt* context) {
    const xmlError* error = xmlCtxtGetLastError(context);
    if (error == nullptr || error->message == nullptr) {
        return "not well-formed XML";
    }
    std::string message = error->message;
    while (!message.empty() && message.back() == '\n') {
        message.pop_back();
    }
    return "line " + std::to_string(error->line) + ": " + message;
}

}  // namespace

Result<Document> parse(std::string_view text, std::size_t max_bytes, const char* reason) {
    static std::once_flag once;
    std::call_once(once, [] { xmlInitParser(); });
    if (text.size() > max_bytes) {
        return Error{Code::kInvalidArgument, reason,
                     "the XML has " + std::to_string(text.size()) + " bytes, more than the " +
                         std::to_string(max_bytes) + " that are accepted"};
    }
    const std::unique_ptr<xmlParserCtxt, FreeContext> context(xmlNewParserCtxt());
    if (!context) {
        return Error{Code::kResourceExhausted, reason, "out of memory while reading the XML"};
    }
    Document document(xmlCtxtReadMemory(context.get(), text.data(), static_cast<int>(text.size()),
                                        "domain.xml", nullptr,
                                        XML_PARSE_NONET | XML_PARSE_NOERROR | XML_PARSE_NOWARNING));
    if (!document) {
        return Error{Code::kInvalidArgument, reason,
                     "the XML cannot be read: " + parse_failure(context.get())};
    }
    // A domain XML never has a DTD; without one there are no entities that could expand or fetch.
    if (document->intSubset != nullptr || document->extSubset != nullptr) {
        return Error{Code::kInvalidArgument, reason,
                     "the XML has a document type declaration; remove it"};
    }
    if (xmlDocGetRootElement(document.get()) == nullptr) {
        return Error{Code::kInvalidArgument, reason, "the XML has no element"};
    }
    return document;
}

bool is_element(const xmlNode* node, const char* name, const char* ns) {
    if (node == nullptr || node->type != XML_ELEMENT_NODE || view(node->name) != name) {
        return false;
    }
    return (node->ns == nullptr ? std::string_view{} : view(node->ns->href)) == ns;
}

const xmlNode* child(const xmlNode* parent, const char* name, const char* ns,
                     const xmlNode* after) {
    const xmlNode* node = after != nullptr    ? after->next
                          : parent != nullptr ? parent->children
                                              : nullptr;
    while (node != nullptr && !is_element(node, name, ns)) {
        node = node->next;
    }
    return node;
}

std::optional<std::string> attribute(const xmlNode* node, const char* name) {
    const auto* key = reinterpret_cast<const xmlChar*>(name);
    xmlChar* value = xmlGetNoNsProp(const_cast<xmlNode*>(node), key);
    if (value == nullptr) {
        return std::nullopt;
    }
    return take(value);
}

std::string text(const xmlNode* node) {
    std::string content = take(xmlNodeGetContent(const_cast<xmlNode*>(node)));
    constexpr char kSpace[] = " \t\r\n";
    const std::size_t begin = content.find_first_not_of(kSpace);
    if (begin == std::string::npos) {
        return {};
    }
    return content.substr(begin, content.find_last_not_of(kSpace) - begin + 1);
}

std::optional<std::uint64_t> parse_number(std::string_view text, std::uint64_t max) {
    std::uint64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, status] = std::from_chars(text.data(), end, value);
    if (text.empty() || status != std::errc{} || stop != end || value > max) {
        return std::nullopt;
    }
    return value;
}

}  // namespace gantry::libvirt::xml
