#include "verify.hpp"

#include <algorithm>
#include <iostream>
#include <map>
#include <set>

#include "digest.hpp"
#include "error.hpp"
#include "results.hpp"

namespace ftmpi {

namespace {

// What comes from a file is printable() here: it must not move the cursor or forge a line.

/// What was asked for or computed with, where the two runs differ: context for a difference, and a caution
/// beside an equality.
void print_settings(const StoredRun& a, const StoredRun& b) {
    std::set<std::string> said;
    constexpr std::size_t most = 20;  // of a file of this program there are fewer
    for (const auto& [label, words] : setting_differences(a.run.identity, b.run.identity))
        if (said.insert(label).second && said.size() <= most) std::cout << "note: " << words << '\n';
    if (said.size() > most) std::cout << "note: " << said.size() - most << " more settings differ\n";
    const auto concerns = [](const std::string& key) {
        for (const char* word : {"numerics", "model", "hash", "kv"})
            if (key.find(word) != std::string::npos) return true;
        return false;
    };
    const std::map<std::string, std::string> others(b.run.attributes.begin(), b.run.attributes.end());
    for (const auto& [key, value] : a.run.attributes) {
        const auto other = others.find(key);
        if (concerns(key) && other != others.end() && other->second != value && !said.contains(key))
            std::cout << "note: " << setting_difference(key, value, other->second) << '\n';
    }
}

void print_changed(const std::string& file, const StoredRun& run) {
    if (!run.changed) return;
    std::cout
        << "note: " << printable(file)
        << " lacks the checksum at its end: another program has written to it since ftmpi made it; what "
           "it holds now is compared\n";
}

void print_incomplete(const std::string& file, const StoredRun& run) {
    if (run.complete) return;
    std::cout << "note: " << printable(file)
              << (run.recovered ? " was recovered from a run that did not end"
                                : " is of a run that was interrupted");
    if (run.run.requests_asked > 0)
        std::cout << ": it holds " << run.requests.size() << " of the " << run.run.requests_asked
                  << " requests asked for";
    std::cout << '\n';
}

bool hashed(const RequestRecord& request) { return !request.logits_sha256.empty(); }

}  // namespace

int verify_command(const Options& options) {
    const std::string &file_a = options.files[0], &file_b = options.files[1];
    const StoredRun a = read_results(file_a, Contents::compared),
                    b = read_results(file_b, Contents::compared);
    if (a.requests.empty() && b.requests.empty())
        throw Error(Exit::bad_input,
                    "neither " + file_a + " nor " + file_b + " holds a request: nothing was compared");
    print_changed(file_a, a);
    print_changed(file_b, b);
    print_incomplete(file_a, a);
    print_incomplete(file_b, b);
    print_settings(a, b);
    if (auto difference = compare_results(a, b)) {
        // The step is in what was not read of the others.
        if (difference->request >= 0) {
            StoredRun one, other;
            one.requests.push_back(read_request(file_a, difference->request, Contents::all_but_logits));
            other.requests.push_back(read_request(file_b, difference->request, Contents::all_but_logits));
            if (auto full = compare_results(one, other)) difference = std::move(full);
        }
        std::cout << "different: " << printable(difference->what) << '\n';
        return static_cast<int>(Exit::different);
    }

    std::int64_t tokens = 0, not_hashed = 0, errors = 0;
    Digest hashes;
    for (std::size_t i = 0; i < a.requests.size(); ++i) {
        tokens += static_cast<std::int64_t>(a.requests[i].output_ids.size());
        // A request that ended before its first token has no logits to hash.
        const bool has_logits = !a.requests[i].output_ids.empty();
        not_hashed += has_logits && !(hashed(a.requests[i]) && hashed(b.requests[i]));
        errors += a.requests[i].finish_reason == "error";
        hashes.update(a.requests[i].logits_sha256.data(), a.requests[i].logits_sha256.size());
    }
    const std::string counts =
        counted(a.requests.size(), "request") + ", " + counted(static_cast<std::uint64_t>(tokens), "token");
    if (not_hashed > 0) {
        const auto all_hashed = [](const StoredRun& run) {
            return std::all_of(run.requests.begin(), run.requests.end(),
                               [](const auto& r) { return hashed(r) || r.output_ids.empty(); });
        };
        const std::string where = all_hashed(a) ? file_b : all_hashed(b) ? file_a : "both files";
        std::cout << "equal tokens (the logits of "
                  << counted(static_cast<std::uint64_t>(not_hashed), "request")
                  << " were not compared: hashing was off in " << printable(where) << "): " << counts << '\n';
    } else if (tokens == 0) {
        std::cout << "equal: " << counts << ": nothing was computed that could differ\n";
    } else {
        std::cout << "equal: " << counts << ", logits hash " << hex(hashes.value()) << '\n';
    }
    if (errors > 0) std::cout << "note: " << errors << " of these ended with an error in the first\n";
    return static_cast<int>(Exit::ok);
}

}  // namespace ftmpi
