// SPDX-License-Identifier: Apache-2.0
#include "attentionPlugin.h"

#include "cuteDslFMHAV2Runner.h"

#include <cstring>
#include <exception>
#include <new>

using nvinfer1::DataType;
using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;
using nvinfer1::PluginTensorDesc;
using trt_edgellm::CuteDslFMHAV2Runner;

namespace example
{

namespace
{

constexpr char const* kNAME = "FmhaForgeAttention";
constexpr char const* kVERSION = "1";
constexpr char const* kNAMESPACE = "";
constexpr char const* kSCALE = "attention_scale";
constexpr char const* kWINDOW = "sliding_window_size";
enum Tensor : int32_t
{
    kQ,
    kK,
    kV,
    kCU_KV_SEQLENS,
    kO,
    kCOUNT
};

int32_t extent(PluginTensorDesc const& tensor, int32_t axis)
{
    return static_cast<int32_t>(tensor.dims.d[axis]);
}

//! The runner of the shapes in hand.
CuteDslFMHAV2Runner makeRunner(PluginTensorDesc const& q, PluginTensorDesc const& k)
{
    return CuteDslFMHAV2Runner(extent(q, 2), extent(k, 2), extent(q, 3), extent(q, 0), extent(q, 1), extent(k, 1));
}

//! What CuteDslFMHAV2Runner::canImplement says, for the device that the engine is built on.
bool canImplement(PluginTensorDesc const& q, PluginTensorDesc const& k, int32_t window)
{
    fmhaforge_problem problem{};
    problem.size = sizeof problem;
    problem.operation = FMHAFORGE_OPERATION_LLM;
    problem.mask = window < INT_MAX ? FMHAFORGE_MASK_SLIDING_CAUSAL : FMHAFORGE_MASK_CAUSAL;
    problem.head_dim = extent(q, 3);
    problem.dtype = FMHAFORGE_DTYPE_FLOAT16;
    problem.num_q_heads = extent(q, 2);
    problem.num_kv_heads = extent(k, 2);
    problem.sm = FMHAFORGE_CURRENT_DEVICE;
    problem.seqlen_q = FMHAFORGE_SEQLEN_UNKNOWN;
    fmhaforge_row const* row = nullptr;
    return fmhaforge_query(&problem, &row) == FMHAFORGE_OK;
}

//! Turn exceptions into TensorRT's error status.
template <typename Function>
int32_t statusOf(Function function) noexcept
{
    try
    {
        return function() ? 0 : -1;
    }
    catch (std::exception const&)
    {
        return -1;
    }
}

} // namespace

AttentionPlugin::AttentionPlugin(Attributes const& attributes)
    : mAttributes(attributes)
{
}

//! The runner counts keys left of the diagonal; the attribute counts the query too.
int32_t AttentionPlugin::window() const
{
    return mAttributes.slidingWindowSize > 0 ? mAttributes.slidingWindowSize - 1 : INT_MAX;
}

nvinfer1::IPluginCapability* AttentionPlugin::getCapabilityInterface(nvinfer1::PluginCapabilityType type) noexcept
{
    switch (type)
    {
    case nvinfer1::PluginCapabilityType::kBUILD: return static_cast<nvinfer1::IPluginV3OneBuild*>(this);
    case nvinfer1::PluginCapabilityType::kRUNTIME: return static_cast<nvinfer1::IPluginV3OneRuntime*>(this);
    case nvinfer1::PluginCapabilityType::kCORE: return static_cast<nvinfer1::IPluginV3OneCore*>(this);
    }
    return nullptr;
}

nvinfer1::IPluginV3* AttentionPlugin::clone() noexcept
{
    return new (std::nothrow) AttentionPlugin(mAttributes);
}

nvinfer1::AsciiChar const* AttentionPlugin::getPluginName() const noexcept
{
    return kNAME;
}

nvinfer1::AsciiChar const* AttentionPlugin::getPluginVersion() const noexcept
{
    return kVERSION;
}

nvinfer1::AsciiChar const* AttentionPlugin::getPluginNamespace() const noexcept
{
    return kNAMESPACE;
}

int32_t AttentionPlugin::configurePlugin(nvinfer1::DynamicPluginTensorDesc const* in, int32_t nbInputs,
    nvinfer1::DynamicPluginTensorDesc const*, int32_t nbOutputs) noexcept
{
    return statusOf([&] { return nbInputs == kO && nbOutputs == 1 && canImplement(in[kQ].desc, in[kK].desc, window()); });
}

int32_t AttentionPlugin::getOutputDataTypes(
    DataType* outputTypes, int32_t nbOutputs, DataType const* inputTypes, int32_t nbInputs) const noexcept
{
    if (nbOutputs != 1 || nbInputs != kO)
    {
        return -1;
    }
    outputTypes[0] = inputTypes[kQ];
    return 0;
}

int32_t AttentionPlugin::getOutputShapes(nvinfer1::DimsExprs const* inputs, int32_t nbInputs, nvinfer1::DimsExprs const*, int32_t,
    nvinfer1::DimsExprs* outputs, int32_t nbOutputs, nvinfer1::IExprBuilder&) noexcept
{
    if (nbOutputs != 1 || nbInputs != kO)
    {
        return -1;
    }
    outputs[0] = inputs[kQ];
    return 0;
}

bool AttentionPlugin::supportsFormatCombination(
    int32_t pos, nvinfer1::DynamicPluginTensorDesc const* inOut, int32_t nbInputs, int32_t nbOutputs) noexcept
{
    if (nbInputs != kO || nbOutputs != 1 || pos < 0 || pos >= kCOUNT || inOut[pos].desc.format != nvinfer1::TensorFormat::kLINEAR)
    {
        return false;
    }
    if (pos == kCU_KV_SEQLENS)
    {
        return inOut[pos].desc.type == DataType::kINT32;
    }
    // Heads and head_dim are known when Q and K are; ask once both are there.
    bool const shapesKnown = pos < kK || canImplement(inOut[kQ].desc, inOut[kK].desc, window());
    return inOut[pos].desc.type == DataType::kHALF && inOut[pos].desc.dims.nbDims == 4 && shapesKnown;
}

int32_t AttentionPlugin::getNbOutputs() const noexcept
{
    return 1;
}

//! Load the exact variant of these shapes, so that enqueue may be captured in a graph.
int32_t AttentionPlugin::onShapeChange(PluginTensorDesc const* in, int32_t nbInputs, PluginTensorDesc const*, int32_t) noexcept
{
    return statusOf([&] { return nbInputs == kO && makeRunner(in[kQ], in[kK]).preflightLlm(nullptr, window()); });
}

int32_t AttentionPlugin::enqueue(PluginTensorDesc const* inputDesc, PluginTensorDesc const*, void const* const* inputs,
    void* const* outputs, void*, cudaStream_t stream) noexcept
{
    return statusOf([&] {
        return makeRunner(inputDesc[kQ], inputDesc[kK])
            .run(inputs[kQ], inputs[kK], inputs[kV], outputs[0], static_cast<int32_t const*>(inputs[kCU_KV_SEQLENS]), stream,
                mAttributes.attentionScale, window());
    });
}

nvinfer1::IPluginV3* AttentionPlugin::attachToContext(nvinfer1::IPluginResourceContext*) noexcept
{
    return clone();
}

nvinfer1::PluginFieldCollection const* AttentionPlugin::getFieldsToSerialize() noexcept
{
    mFields = {PluginField{kSCALE, &mAttributes.attentionScale, PluginFieldType::kFLOAT32, 1},
        PluginField{kWINDOW, &mAttributes.slidingWindowSize, PluginFieldType::kINT32, 1}};
    mCollection.nbFields = static_cast<int32_t>(mFields.size());
    mCollection.fields = mFields.data();
    return &mCollection;
}

AttentionPluginCreator::AttentionPluginCreator()
    : mFields{PluginField{kSCALE, nullptr, PluginFieldType::kFLOAT32, 1}, PluginField{kWINDOW, nullptr, PluginFieldType::kINT32, 1}}
{
    mCollection.nbFields = static_cast<int32_t>(mFields.size());
    mCollection.fields = mFields.data();
}

//! nullptr for no fields at all, and for a field of a name or type that the plugin does not know, or without a value.
nvinfer1::IPluginV3* AttentionPluginCreator::createPlugin(
    nvinfer1::AsciiChar const*, nvinfer1::PluginFieldCollection const* fc, nvinfer1::TensorRTPhase) noexcept
{
    Attributes attributes;
    if (fc == nullptr)
    {
        return nullptr;
    }
    for (int32_t i = 0; i < fc->nbFields; ++i)
    {
        PluginField const& field = fc->fields[i];
        if (field.name == nullptr || field.data == nullptr || field.length != 1)
        {
            return nullptr;
        }
        if (std::strcmp(field.name, kSCALE) == 0 && field.type == PluginFieldType::kFLOAT32)
        {
            attributes.attentionScale = *static_cast<float const*>(field.data);
        }
        else if (std::strcmp(field.name, kWINDOW) == 0 && field.type == PluginFieldType::kINT32)
        {
            attributes.slidingWindowSize = *static_cast<int32_t const*>(field.data);
        }
        else
        {
            return nullptr;
        }
    }
    return new (std::nothrow) AttentionPlugin(attributes);
}

nvinfer1::PluginFieldCollection const* AttentionPluginCreator::getFieldNames() noexcept
{
    return &mCollection;
}

nvinfer1::AsciiChar const* AttentionPluginCreator::getPluginName() const noexcept
{
    return kNAME;
}

nvinfer1::AsciiChar const* AttentionPluginCreator::getPluginVersion() const noexcept
{
    return kVERSION;
}

nvinfer1::AsciiChar const* AttentionPluginCreator::getPluginNamespace() const noexcept
{
    return kNAMESPACE;
}

} // namespace example

nvinfer1::IPluginCreatorV3One* getAttentionPluginCreator()
{
    static example::AttentionPluginCreator creator;
    return &creator;
}
