// A thin, safe reading layer over libxml2: owned documents, bounded input, no DTD, no entities.
// Internal to this folder. Thread-safe; libxml2 is initialised once.
#pragma once

#include <libxml/parser.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "proto/base/result.h"

namespace gantry::libvirt::xml {

struct FreeDocument {
    void operator()(xmlDoc* document) const noexcept { xmlFreeDoc(document); }
};
using Document = std::unique_ptr<xmlDoc, FreeDocument>;

/// Parses at most `max_bytes`; `reason` is the error's id. The root element always exists.
[[nodiscard]] Result<Document> parse(std::string_view text, std::size_t max_bytes,
                                     const char* reason);

/// First child element with this local name and namespace ("": none), after `after` if given.
[[nodiscard]] const xmlNode* child(const xmlNode* parent, const char* name, const char* ns = "",
                                   const xmlNode* after = nullptr);
[[nodiscard]] bool is_element(const xmlNode* node, const char* name, const char* ns = "");

/// Attribute without a namespace; nullopt when it is not there.
[[nodiscard]] std::optional<std::string> attribute(const xmlNode* node, const char* name);
/// Text of an element without surrounding white space.
[[nodiscard]] std::string text(const xmlNode* node);

/// Digits only, no sign, at most `max`.
[[nodiscard]] std::optional<std::uint64_t> parse_number(std::string_view text, std::uint64_t max);

}  // namespace gantry::libvirt::xml
