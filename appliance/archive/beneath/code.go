package beneath

import pb "signalbox/appliance/archive/archivepb"

// Code is the machine meaning of a failure (daemon protocol 2.12).
type Code = pb.ErrorCode

// The codes that file-system work can end with.
const (
	Internal          = pb.ErrorCode_ERROR_CODE_INTERNAL
	Unsupported       = pb.ErrorCode_ERROR_CODE_UNSUPPORTED
	InvalidArgument   = pb.ErrorCode_ERROR_CODE_INVALID_ARGUMENT
	NotFound          = pb.ErrorCode_ERROR_CODE_NOT_FOUND
	Busy              = pb.ErrorCode_ERROR_CODE_BUSY
	Unavailable       = pb.ErrorCode_ERROR_CODE_UNAVAILABLE
	NoSpace           = pb.ErrorCode_ERROR_CODE_NO_SPACE
	UnsupportedFormat = pb.ErrorCode_ERROR_CODE_UNSUPPORTED_FORMAT
	PathConflict      = pb.ErrorCode_ERROR_CODE_PATH_CONFLICT
	PathUnsafe        = pb.ErrorCode_ERROR_CODE_PATH_UNSAFE
	PermissionDenied  = pb.ErrorCode_ERROR_CODE_PERMISSION_DENIED
	FilesystemLimit   = pb.ErrorCode_ERROR_CODE_FILESYSTEM_LIMIT
	ReadError         = pb.ErrorCode_ERROR_CODE_READ_ERROR
	WriteError        = pb.ErrorCode_ERROR_CODE_WRITE_ERROR
)
