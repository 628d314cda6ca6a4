"""The frames that a client (workbench, command line) and the engine exchange, one module per subject.

On the wire, a frame is a 4-byte little-endian length and a MessagePack map whose `type` field names the frame. The
first frame in each direction is a greeting with `PROTOCOL_VERSION`; a peer of another version is rejected. The client
chooses the number `request` of a request, which all answers repeat. Imports neither torch nor MLIR.
"""

from __future__ import annotations

from buddy.compiler.protocol.catalogue import COMPILER_NAMES as COMPILER_NAMES
from buddy.compiler.protocol.catalogue import INDUCTOR_PHASES as INDUCTOR_PHASES
from buddy.compiler.protocol.catalogue import IREE_PHASES as IREE_PHASES
from buddy.compiler.protocol.catalogue import PHASES_OF_COMPILERS as PHASES_OF_COMPILERS
from buddy.compiler.protocol.catalogue import BackendDescribed as BackendDescribed
from buddy.compiler.protocol.catalogue import CheckFlags as CheckFlags
from buddy.compiler.protocol.catalogue import DescribeBackend as DescribeBackend
from buddy.compiler.protocol.catalogue import DeviceInfo as DeviceInfo
from buddy.compiler.protocol.catalogue import FlagInfo as FlagInfo
from buddy.compiler.protocol.catalogue import FlagsChecked as FlagsChecked
from buddy.compiler.protocol.catalogue import ListOps as ListOps
from buddy.compiler.protocol.catalogue import ListPasses as ListPasses
from buddy.compiler.protocol.catalogue import ListPresets as ListPresets
from buddy.compiler.protocol.catalogue import Ops as Ops
from buddy.compiler.protocol.catalogue import Passes as Passes
from buddy.compiler.protocol.catalogue import Presets as Presets
from buddy.compiler.protocol.connection import MAX_FRAME as MAX_FRAME
from buddy.compiler.protocol.connection import PROTOCOL_VERSION as PROTOCOL_VERSION
from buddy.compiler.protocol.connection import Cancel as Cancel
from buddy.compiler.protocol.connection import Failed as Failed
from buddy.compiler.protocol.connection import FilesChanged as FilesChanged
from buddy.compiler.protocol.connection import Frame as Frame
from buddy.compiler.protocol.connection import Hello as Hello
from buddy.compiler.protocol.connection import LogLevel as LogLevel
from buddy.compiler.protocol.connection import Part as Part
from buddy.compiler.protocol.connection import Ping as Ping
from buddy.compiler.protocol.connection import Pong as Pong
from buddy.compiler.protocol.connection import Printout as Printout
from buddy.compiler.protocol.connection import Progress as Progress
from buddy.compiler.protocol.connection import Request as Request
from buddy.compiler.protocol.connection import Shutdown as Shutdown
from buddy.compiler.protocol.connection import WatchFiles as WatchFiles
from buddy.compiler.protocol.connection import Welcome as Welcome
from buddy.compiler.protocol.connection import WorkerState as WorkerState
from buddy.compiler.protocol.connection import answer_type as answer_type
from buddy.compiler.protocol.dynamo import BREAK_FIX as BREAK_FIX
from buddy.compiler.protocol.dynamo import DynamoBreak as DynamoBreak
from buddy.compiler.protocol.dynamo import DynamoCompile as DynamoCompile
from buddy.compiler.protocol.dynamo import DynamoExplained as DynamoExplained
from buddy.compiler.protocol.dynamo import DynamoGuard as DynamoGuard
from buddy.compiler.protocol.dynamo import DynamoProgress as DynamoProgress
from buddy.compiler.protocol.dynamo import DynamoReport as DynamoReport
from buddy.compiler.protocol.dynamo import ExplainDynamo as ExplainDynamo
from buddy.compiler.protocol.dynamo import GuardFailure as GuardFailure
from buddy.compiler.protocol.dynamo import RecompileLimit as RecompileLimit
from buddy.compiler.protocol.dynamo import UserFrame as UserFrame
from buddy.compiler.protocol.errors import Diagnostic as Diagnostic
from buddy.compiler.protocol.numerics import CompareNodes as CompareNodes
from buddy.compiler.protocol.numerics import NodesCompared as NodesCompared
from buddy.compiler.protocol.plain_values import Assignment as Assignment
from buddy.compiler.protocol.plain_values import BackendInfo as BackendInfo
from buddy.compiler.protocol.plain_values import DialectInfo as DialectInfo
from buddy.compiler.protocol.plain_values import GraphInfo as GraphInfo
from buddy.compiler.protocol.plain_values import Guard as Guard
from buddy.compiler.protocol.plain_values import NodeRow as NodeRow
from buddy.compiler.protocol.plain_values import OpInfo as OpInfo
from buddy.compiler.protocol.plain_values import OptionInfo as OptionInfo
from buddy.compiler.protocol.plain_values import PassInfo as PassInfo
from buddy.compiler.protocol.plain_values import Preset as Preset
from buddy.compiler.protocol.plain_values import Stage as Stage
from buddy.compiler.protocol.plain_values import TrainingRole as TrainingRole
from buddy.compiler.protocol.profile import HotSpot as HotSpot
from buddy.compiler.protocol.profile import NodeTime as NodeTime
from buddy.compiler.protocol.profile import Peak as Peak
from buddy.compiler.protocol.profile import Profile as Profile
from buddy.compiler.protocol.profile import Profiled as Profiled
from buddy.compiler.protocol.profile import ProfileReport as ProfileReport
from buddy.compiler.protocol.profile import RegionTime as RegionTime
from buddy.compiler.protocol.profile import Sampling as Sampling
from buddy.compiler.protocol.programs import BY_HAND as BY_HAND
from buddy.compiler.protocol.programs import EXPORT_KINDS as EXPORT_KINDS
from buddy.compiler.protocol.programs import FOLDED as FOLDED
from buddy.compiler.protocol.programs import NOT_APPLIED as NOT_APPLIED
from buddy.compiler.protocol.programs import OPERATOR_GUIDE as OPERATOR_GUIDE
from buddy.compiler.protocol.programs import Assigned as Assigned
from buddy.compiler.protocol.programs import Captured as Captured
from buddy.compiler.protocol.programs import Compile as Compile
from buddy.compiler.protocol.programs import Compiled as Compiled
from buddy.compiler.protocol.programs import Export as Export
from buddy.compiler.protocol.programs import Exported as Exported
from buddy.compiler.protocol.programs import ExportedFile as ExportedFile
from buddy.compiler.protocol.programs import ExportKind as ExportKind
from buddy.compiler.protocol.programs import Extract as Extract
from buddy.compiler.protocol.programs import Extracted as Extracted
from buddy.compiler.protocol.programs import Open as Open
from buddy.compiler.protocol.programs import Ran as Ran
from buddy.compiler.protocol.programs import Reopened as Reopened
from buddy.compiler.protocol.programs import Run as Run
from buddy.compiler.protocol.programs import Script as Script
from buddy.compiler.protocol.programs import StageDone as StageDone
from buddy.compiler.protocol.programs import WriteScript as WriteScript
from buddy.compiler.protocol.provenance import LLVM as LLVM
from buddy.compiler.protocol.provenance import CodeExplained as CodeExplained
from buddy.compiler.protocol.provenance import ExplainCode as ExplainCode
from buddy.compiler.protocol.provenance import FindJumps as FindJumps
from buddy.compiler.protocol.provenance import FindOrigins as FindOrigins
from buddy.compiler.protocol.provenance import Followed as Followed
from buddy.compiler.protocol.provenance import FollowNode as FollowNode
from buddy.compiler.protocol.provenance import Jumps as Jumps
from buddy.compiler.protocol.provenance import LineKind as LineKind
from buddy.compiler.protocol.provenance import LineOrigins as LineOrigins
from buddy.compiler.protocol.provenance import NodeTrace as NodeTrace
from buddy.compiler.protocol.provenance import OpenPython as OpenPython
from buddy.compiler.protocol.provenance import OriginsFound as OriginsFound
from buddy.compiler.protocol.provenance import PythonOpened as PythonOpened
from buddy.compiler.protocol.provenance import PythonStructure as PythonStructure
from buddy.compiler.protocol.run_report import DifferenceMap as DifferenceMap
from buddy.compiler.protocol.run_report import Divergence as Divergence
from buddy.compiler.protocol.run_report import Element as Element
from buddy.compiler.protocol.run_report import FetchValues as FetchValues
from buddy.compiler.protocol.run_report import InputChoice as InputChoice
from buddy.compiler.protocol.run_report import ListValues as ListValues
from buddy.compiler.protocol.run_report import MachineLoad as MachineLoad
from buddy.compiler.protocol.run_report import MapDifferences as MapDifferences
from buddy.compiler.protocol.run_report import MemoryUse as MemoryUse
from buddy.compiler.protocol.run_report import OutputReport as OutputReport
from buddy.compiler.protocol.run_report import RunReport as RunReport
from buddy.compiler.protocol.run_report import RunTensor as RunTensor
from buddy.compiler.protocol.run_report import SideReport as SideReport
from buddy.compiler.protocol.run_report import Timing as Timing
from buddy.compiler.protocol.run_report import ValueKind as ValueKind
from buddy.compiler.protocol.run_report import ValueList as ValueList
from buddy.compiler.protocol.run_report import Values as Values
from buddy.compiler.protocol.searches import Attempted as Attempted
from buddy.compiler.protocol.searches import Bisect as Bisect
from buddy.compiler.protocol.searches import Bisected as Bisected
from buddy.compiler.protocol.searches import BisectionResult as BisectionResult
from buddy.compiler.protocol.searches import Criterion as Criterion
from buddy.compiler.protocol.searches import Culprit as Culprit
from buddy.compiler.protocol.searches import Tune as Tune
from buddy.compiler.protocol.searches import Tuned as Tuned
from buddy.compiler.protocol.searches import Variation as Variation
from buddy.compiler.protocol.searches import WrongLowering as WrongLowering
from buddy.compiler.protocol.texts import Characters as Characters
from buddy.compiler.protocol.texts import CheckIr as CheckIr
from buddy.compiler.protocol.texts import Compare as Compare
from buddy.compiler.protocol.texts import Compared as Compared
from buddy.compiler.protocol.texts import DescribeOp as DescribeOp
from buddy.compiler.protocol.texts import FetchCharacters as FetchCharacters
from buddy.compiler.protocol.texts import FetchLines as FetchLines
from buddy.compiler.protocol.texts import FetchText as FetchText
from buddy.compiler.protocol.texts import FindMainLine as FindMainLine
from buddy.compiler.protocol.texts import FindNode as FindNode
from buddy.compiler.protocol.texts import FindRegion as FindRegion
from buddy.compiler.protocol.texts import FoundEach as FoundEach
from buddy.compiler.protocol.texts import Hits as Hits
from buddy.compiler.protocol.texts import IrChecked as IrChecked
from buddy.compiler.protocol.texts import Lines as Lines
from buddy.compiler.protocol.texts import ListSymbols as ListSymbols
from buddy.compiler.protocol.texts import ListTypes as ListTypes
from buddy.compiler.protocol.texts import LongType as LongType
from buddy.compiler.protocol.texts import OpSummary as OpSummary
from buddy.compiler.protocol.texts import Region as Region
from buddy.compiler.protocol.texts import Reprint as Reprint
from buddy.compiler.protocol.texts import Reprinted as Reprinted
from buddy.compiler.protocol.texts import Search as Search
from buddy.compiler.protocol.texts import SearchEach as SearchEach
from buddy.compiler.protocol.texts import SearchResult as SearchResult
from buddy.compiler.protocol.texts import Symbol as Symbol
from buddy.compiler.protocol.texts import Symbols as Symbols
from buddy.compiler.protocol.texts import Text as Text
from buddy.compiler.protocol.texts import Tried as Tried
from buddy.compiler.protocol.texts import TriedAll as TriedAll
from buddy.compiler.protocol.texts import TryPasses as TryPasses
from buddy.compiler.protocol.texts import Types as Types

ClientFrame = (
    Hello
    | Open
    | Compile
    | Run
    | CompareNodes
    | Cancel
    | FetchLines
    | FetchText
    | Search
    | SearchEach
    | ListSymbols
    | ListTypes
    | FindRegion
    | FetchCharacters
    | Reprint
    | DescribeOp
    | FindNode
    | FindMainLine
    | Compare
    | CheckIr
    | TryPasses
    | Profile
    | FollowNode
    | FindOrigins
    | FindJumps
    | OpenPython
    | ExplainCode
    | Extract
    | Export
    | WriteScript
    | Bisect
    | ListValues
    | FetchValues
    | MapDifferences
    | WatchFiles
    | ListPasses
    | ListOps
    | ListPresets
    | Tune
    | DescribeBackend
    | CheckFlags
    | ExplainDynamo
    | Ping
    | Shutdown
)
EngineFrame = (
    Welcome
    | Progress
    | Printout
    | Captured
    | Reopened
    | Assigned
    | StageDone
    | Compiled
    | Ran
    | NodesCompared
    | Failed
    | WorkerState
    | Lines
    | Text
    | SearchResult
    | FoundEach
    | Symbols
    | Types
    | Region
    | Characters
    | Reprinted
    | OpSummary
    | Compared
    | IrChecked
    | Tried
    | TriedAll
    | Profiled
    | Followed
    | OriginsFound
    | Jumps
    | PythonOpened
    | CodeExplained
    | Extracted
    | Exported
    | Script
    | Bisected
    | ValueList
    | Values
    | DifferenceMap
    | FilesChanged
    | Passes
    | Ops
    | Presets
    | Attempted
    | Tuned
    | BackendDescribed
    | FlagsChecked
    | DynamoProgress
    | DynamoExplained
    | Pong
)
