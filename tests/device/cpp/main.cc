// SPDX-License-Identifier: Apache-2.0
// Runs every variant of a bundle through the C++ class and through the Edge-LLM wrappers, and compares with double precision.
// One line for each check; exit 0: all passed, 1: some failed, 2: no device, 3: the device cannot go on.
#include "devices.h"
#include "path.h"

#include <cstdio>
#include <memory>

namespace device_test
{

namespace
{

constexpr int kREPLAYS = 100;
constexpr int64_t kGAP = 24; // elements after each row and entry of the tensors with wide strides

class Report
{
public:
    void prefix(std::string const& text)
    {
        mPrefix = text;
    }
    void check(bool isRight, std::string const& what, std::string const& detail = "")
    {
        (isRight ? mPassed : mFailed) += 1;
        std::string const end = detail.empty() ? "" : ": " + detail;
        std::printf("%s %s %s%s\n", isRight ? "ok  " : "FAIL", mPrefix.c_str(), what.c_str(), end.c_str());
        std::fflush(stdout);
    }
    int finish() const
    {
        std::printf("%d passed, %d failed\n", mPassed, mFailed);
        return mFailed == 0 && mPassed > 0 ? 0 : 1;
    }

private:
    std::string mPrefix;
    int mPassed = 0;
    int mFailed = 0;
};

std::string number(double value)
{
    char text[32];
    std::snprintf(text, sizeof text, "%.3g", value);
    return text;
}

//! A case in both layouts, with its answer.
struct Subject
{
    Case made;
    Problem contiguous;
    Problem wide;
    Answer expected;

    explicit Subject(Case const& given) : made(given), contiguous(layOut(given, 0)), wide(layOut(given, kGAP)), expected(answer(given)) {}
};

//! Nothing is loaded yet: within a capture the run is refused, the capture survives, and nothing is enqueued or written.
void checkFirstUseInCapture(Report& report, Path const& path, DeviceProblem& device, Stream const& stream)
{
    device.o.set(device.host.o.bits);
    bool hasRun = true;
    Graph const graph(stream, [&] { hasRun = path.run(device, stream.get()); });
    std::string const reason = path.reason();
    bool const isNamed = reason.find("the stream is capturing") != std::string::npos;
    bool const isHarmless = graph.nodes() == 0 && device.o.get() == device.host.o.bits;
    report.check(!hasRun && isNamed && isHarmless, "first use in a capture is refused",
        hasRun ? "it was not" : isHarmless ? reason : "something was enqueued or written; " + reason);
}

//! Run outside of any capture; the bits of O.
std::vector<Half> checkRun(Report& report, Path const& path, DeviceProblem& device, Stream const& stream, Answer const& expected, char const* what)
{
    device.o.set(device.host.o.bits);
    bool const hasRun = path.run(device, stream.get());
    std::string const reason = path.reason();
    stream.wait();
    std::vector<Half> bits = device.o.get();
    Verdict const verdict = judge(device.host, expected, bits);
    std::string detail = "relative error " + number(verdict.relativeError) + ", worst element at " + number(verdict.worstViolation) + " of what is allowed";
    for (std::string const& fault : verdict.faults)
    {
        detail += "; " + fault;
    }
    bool const isUnchanged = device.inputsAreUnchanged();
    detail += hasRun ? "" : "; refused: " + reason;
    detail += isUnchanged ? "" : "; an input was overwritten";
    report.check(hasRun && verdict.faults.empty() && isUnchanged, what, detail);
    return bits;
}

//! How many elements differ, and the first and last of them.
std::string difference(std::vector<Half> const& bits, std::vector<Half> const& expected)
{
    std::size_t count = 0;
    std::size_t first = 0;
    std::size_t last = 0;
    for (std::size_t i = 0; i < bits.size(); ++i)
    {
        if (bits[i] != expected[i])
        {
            first = count == 0 ? i : first;
            last = i;
            ++count;
        }
    }
    return "has " + std::to_string(count) + " other elements, from " + std::to_string(first) + " to " + std::to_string(last) + " of " + std::to_string(bits.size());
}

void checkReplays(Report& report, Path const& path, DeviceProblem& device, Stream const& stream, std::vector<Half> const& eager)
{
    bool hasRun = false;
    Graph graph(stream, [&] { hasRun = path.run(device, stream.get()); });
    int equal = 0;
    std::string firstDifference;
    for (int i = 0; i < kREPLAYS; ++i)
    {
        device.o.set(device.host.o.bits);
        graph.launch(stream);
        stream.wait();
        std::vector<Half> const bits = device.o.get();
        equal += bits == eager ? 1 : 0;
        if (bits != eager && firstDifference.empty())
        {
            firstDifference = "; replay " + std::to_string(i) + " " + difference(bits, eager);
        }
    }
    report.check(hasRun && graph.nodes() > 0 && equal == kREPLAYS, "graph replays equal the eager run bit by bit",
        std::to_string(equal) + " of " + std::to_string(kREPLAYS) + firstDifference + (hasRun ? "" : "; refused: " + path.reason()));
}

//! Everything of one path on the current device; the logical bits of O.
std::vector<Half> checkPath(Report& report, Path const& path, Subject const& subject, DeviceProblem& device)
{
    Stream const stream;
    checkFirstUseInCapture(report, path, device, stream);
    bool const isReady = path.ready(subject.made, stream.get());
    report.check(isReady, "is made ready after the refusal", path.reason());
    std::vector<Half> const bits = checkRun(report, path, device, stream, subject.expected, "equals float64");
    checkReplays(report, path, device, stream, bits);
    return logicalBits(device.host, bits);
}

//! Every check of one variant on the current device; the logical bits of O.
std::vector<Half> checkSubject(Report& report, Subject const& subject, int deviceIndex)
{
    auto const prefix = [&](char const* path) {
        report.prefix("device " + std::to_string(deviceIndex) + " " + subject.made.variant + " " + path);
    };
    Path const byClass = classPath();
    Path const byWrapper = wrapperPath();
    DeviceProblem contiguous(subject.contiguous);
    prefix(byClass.name);
    std::vector<Half> const classBits = checkPath(report, byClass, subject, contiguous);
    prefix(byWrapper.name);
    std::vector<Half> const wrapperBits = checkPath(report, byWrapper, subject, contiguous);
    report.check(wrapperBits == classBits, "gives the bits of the class");
    DeviceProblem wide(subject.wide);
    Stream const stream;
    std::vector<Half> const wideBits = checkRun(report, byWrapper, wide, stream, subject.expected, "with wide strides equals float64");
    report.check(logicalBits(subject.wide, wideBits) == classBits, "with wide strides gives the bits of the class");
    return classBits;
}

void checkVariant(Report& report, Case const& made, Devices const& devices)
{
    Subject const subject(made);
    std::vector<Half> firstBits;
    for (int device = 0; device < devices.count(); ++device)
    {
        devices.use(device);
        std::vector<Half> const bits = checkSubject(report, subject, device);
        if (device == 0)
        {
            firstBits = bits;
            continue;
        }
        report.check(bits == firstBits, "gives the bits of device 0");
        devices.use(0);
        report.prefix("device 0 after device " + std::to_string(device) + " " + made.variant);
        DeviceProblem again(subject.contiguous);
        Stream const stream;
        (void)checkRun(report, classPath(), again, stream, subject.expected, "class still equals float64");
    }
}

#define VARIANT(name, abi, operation, mask, headDim, seqlenQ) makeCase(#name, Operation::operation, Mask::mask, headDim, seqlenQ),

std::vector<Case> const kCASES{
#include "variants.inc"
};

int runAll()
{
    int found = 0;
    cudaError_t const error = cudaGetDeviceCount(&found);
    if (error != cudaSuccess || found == 0)
    {
        std::printf("no CUDA device: %s\n", error == cudaSuccess ? "none is visible" : cudaGetErrorString(error));
        return 2;
    }
    Devices const devices(found);
    Report report;
    std::printf("%zu variants, %d devices%s\n", kCASES.size(), devices.count(), devices.isSecondContext() ? ", the second is another context of the first" : "");
    for (Case const& made : kCASES)
    {
        checkVariant(report, made, devices);
    }
    return report.finish();
}

} // namespace

} // namespace device_test

int main()
{
    try
    {
        return device_test::runAll();
    }
    catch (device_test::CudaError const& error)
    {
        std::printf("stopped: %s\n", error.what());
        return 3;
    }
}
