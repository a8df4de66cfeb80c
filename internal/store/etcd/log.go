package etcd

import (
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// harmless lists errors that etcd 3.7 logs in normal operation.
var harmless = map[string]bool{
	// A new member has no snapshot to detect the storage version from; it succeeds at the next
	// attempt.
	"failed to update storage version": true,
	// It retries until the learner is ready.
	"rejecting promote learner: learner is not ready": true,
}

// quietLogger returns a logger that writes etcd's errors except the harmless ones, and reports the
// fatal one to failed.
func quietLogger(w io.Writer, failed *fatal) *zap.Logger {
	enc := zapcore.NewConsoleEncoder(zapcore.EncoderConfig{
		MessageKey: "message", LevelKey: "level", TimeKey: "time", NameKey: "name",
		EncodeTime: zapcore.ISO8601TimeEncoder, EncodeLevel: zapcore.CapitalLevelEncoder, EncodeDuration: zapcore.StringDurationEncoder,
	})
	core := zapcore.NewCore(enc, zapcore.Lock(zapcore.AddSync(w)), zapcore.ErrorLevel)
	return zap.New(quietCore{core}, zap.WithFatalHook(failed)).Named("etcd")
}

// quietCore drops harmless messages.
type quietCore struct{ zapcore.Core }

// With implements zapcore.Core.
func (c quietCore) With(f []zapcore.Field) zapcore.Core { return quietCore{c.Core.With(f)} }

// Check implements zapcore.Core.
func (c quietCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if harmless[e.Message] || e.Level == zapcore.FatalLevel {
		return ce
	}
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

// Write implements zapcore.Core.
func (c quietCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	if cause := errorOf(fields); cause != nil && strings.Contains(cause.Error(), net.ErrClosed.Error()) {
		return nil // Close closed the listener
	}
	return c.Core.Write(e, fields)
}

// errorOf returns the error among the fields, or nil.
func errorOf(fields []zapcore.Field) error {
	for _, field := range fields {
		if cause, ok := field.Interface.(error); ok && field.Type == zapcore.ErrorType {
			return cause
		}
	}
	return nil
}

// fatal handles fatal errors of etcd. etcd would exit the process without informing its user.
// Instead only the goroutine ends, which is as final for the member, and the store reports the
// error.
type fatal struct {
	mu   sync.Mutex
	err  error
	told func(error)
}

// OnWrite implements zapcore.CheckWriteHook.
func (f *fatal) OnWrite(ce *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := errors.New(ce.Message)
	if cause := errorOf(fields); cause != nil {
		err = fmt.Errorf("%s: %w", ce.Message, cause)
	}
	f.mu.Lock()
	if f.err == nil {
		f.err = err
	}
	told := f.told
	f.mu.Unlock()
	if told != nil {
		told(f.cause())
	}
	runtime.Goexit()
}

// cause returns the first fatal error, or nil.
func (f *fatal) cause() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// tell sets the function that receives the fatal error, and calls it immediately if there is one.
func (f *fatal) tell(told func(error)) {
	f.mu.Lock()
	f.told = told
	f.mu.Unlock()
	if cause := f.cause(); cause != nil {
		told(cause)
	}
}
