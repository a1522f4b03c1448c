// SPDX-License-Identifier: Apache-2.0
#include "devices.h"

#include "cuda.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <string>

// The linker's --wrap=dlsym sends every dlsym of the program, and of the archives in it, to __wrap_dlsym.
extern "C" void* __real_dlsym(void* library, char const* name);
extern "C" void* __wrap_dlsym(void* library, char const* name);

namespace device_test
{

namespace
{

constexpr int kSUCCESS = 0;
constexpr int kSECOND = 1; // what the libraries know the second context by
constexpr int kDRIVER_VERSION = 12000;

using Context = struct CUctx_st*;
using GetProcAddress = int (*)(char const* symbol, void** function, int version, uint64_t flags, int* found);

Context gSecond = nullptr; // null: every device is what it is
GetProcAddress gGetProcAddress = nullptr;

//! The driver's own functions, of those that tell devices apart.
struct
{
    int (*ctxGetCurrent)(Context*);
    int (*ctxSetCurrent)(Context);
    int (*ctxGetDevice)(int*);
    int (*deviceGet)(int*, int);
    int (*deviceGetAttribute)(int*, int, int);
    int (*devicePrimaryCtxRetain)(Context*, int);
    int (*kernelSetAttribute)(int, int, void*, int);
} gDriver;

int gpuOf(int device)
{
    return device == kSECOND ? 0 : device;
}

int ctxGetDevice(int* device)
{
    Context current = nullptr;
    int const error = gDriver.ctxGetDevice(device);
    if (error == kSUCCESS && gDriver.ctxGetCurrent(&current) == kSUCCESS && current == gSecond)
    {
        *device = kSECOND;
    }
    return error;
}

int deviceGet(int* device, int ordinal)
{
    int const error = gDriver.deviceGet(device, gpuOf(ordinal));
    *device = ordinal;
    return error;
}

int deviceGetAttribute(int* value, int attribute, int device)
{
    return gDriver.deviceGetAttribute(value, attribute, gpuOf(device));
}

int devicePrimaryCtxRetain(Context* context, int device)
{
    if (device == kSECOND)
    {
        *context = gSecond;
        return kSUCCESS;
    }
    return gDriver.devicePrimaryCtxRetain(context, device);
}

int kernelSetAttribute(int attribute, int value, void* kernel, int device)
{
    return gDriver.kernelSetAttribute(attribute, value, kernel, gpuOf(device));
}

template <typename Function>
void* addressOf(Function function)
{
    return reinterpret_cast<void*>(function);
}

//! cuGetProcAddress as the libraries get it.
int getProcAddress(char const* symbol, void** function, int version, uint64_t flags, int* found)
{
    static struct
    {
        char const* name;
        void* function;
    } const kINSTEAD[] = {{"cuCtxGetDevice", addressOf(ctxGetDevice)}, {"cuDeviceGet", addressOf(deviceGet)},
        {"cuDeviceGetAttribute", addressOf(deviceGetAttribute)}, {"cuDevicePrimaryCtxRetain", addressOf(devicePrimaryCtxRetain)},
        {"cuKernelSetAttribute", addressOf(kernelSetAttribute)}};
    int const error = gGetProcAddress(symbol, function, version, flags, found);
    for (auto const& each : kINSTEAD)
    {
        if (error == kSUCCESS && std::strcmp(each.name, symbol) == 0)
        {
            *function = each.function;
        }
    }
    return error;
}

template <typename Function>
void find(Function& function, char const* name)
{
    void* address = nullptr;
    int found = 0;
    if (gGetProcAddress(name, &address, kDRIVER_VERSION, 0, &found) != kSUCCESS || address == nullptr)
    {
        throw CudaError(std::string("the driver has no ") + name);
    }
    function = reinterpret_cast<Function>(address);
}

void findDriver(void* library)
{
    gGetProcAddress = reinterpret_cast<GetProcAddress>(__real_dlsym(library, "cuGetProcAddress_v2"));
    if (gGetProcAddress == nullptr)
    {
        throw CudaError("the driver has no cuGetProcAddress_v2");
    }
    find(gDriver.ctxGetCurrent, "cuCtxGetCurrent");
    find(gDriver.ctxSetCurrent, "cuCtxSetCurrent");
    find(gDriver.ctxGetDevice, "cuCtxGetDevice");
    find(gDriver.deviceGet, "cuDeviceGet");
    find(gDriver.deviceGetAttribute, "cuDeviceGetAttribute");
    find(gDriver.devicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
    find(gDriver.kernelSetAttribute, "cuKernelSetAttribute");
}

//! A context of GPU 0 beside the primary one, which lives as long as the program.
Context newContext(void* library)
{
    using Create = int (*)(Context*, unsigned flags, int device);
    auto const create = reinterpret_cast<Create>(__real_dlsym(library, "cuCtxCreate_v2"));
    Context made = nullptr;
    int const error = create == nullptr ? -1 : create(&made, 0, 0);
    if (error != kSUCCESS)
    {
        throw CudaError("cuCtxCreate failed: " + std::to_string(error));
    }
    return made;
}

} // namespace

Devices::Devices(int count) : mIsSecondContext(count == 1)
{
    if (mIsSecondContext)
    {
        void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr)
        {
            throw CudaError(dlerror());
        }
        findDriver(library);
        gSecond = newContext(library);
    }
    use(0);
}

void Devices::use(int device) const
{
    if (!mIsSecondContext || device == 0)
    {
        must(cudaSetDevice(device), "cudaSetDevice");
    }
    else if (gDriver.ctxSetCurrent(gSecond) != kSUCCESS)
    {
        throw CudaError("cuCtxSetCurrent failed");
    }
}

} // namespace device_test

void* __wrap_dlsym(void* library, char const* name)
{
    bool const isInstead = device_test::gSecond != nullptr && std::strcmp(name, "cuGetProcAddress_v2") == 0;
    return isInstead ? device_test::addressOf(device_test::getProcAddress) : __real_dlsym(library, name);
}
