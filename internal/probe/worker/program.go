package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shuntlb/shunt/internal/probe"
)

// Limits of each process of a program, in addition to its time (setrlimit(2)).
const (
	maxProgramMemory = 1 << 30
	// maxProgramSpace bounds the address space, used or not. It also holds for Child's own last
	// steps: Go reserves 1 to 2 GiB.
	maxProgramSpace = 8 << 30
	maxProgramFiles = 64
	// maxProgramProcesses bounds all processes of the user: eight for each of maxPrograms.
	maxProgramProcesses = 8 * maxPrograms
	// maxProgramOutput is how much a program may write before it is killed, in bytes. A pipe holds
	// as much.
	maxProgramOutput = 64 << 10
	// giveUp is how long to wait for the end of a program that was killed. One in uninterruptible
	// sleep ends when it wakes.
	giveUp = 2 * time.Second
	// maxStuck bounds the programs that were given up. While there are as many, no program starts.
	maxStuck    = maxPrograms
	programPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// run probes with a program: exit status 0 is good, any other is bad. A program that cannot be
// started is void, because that is not the server's fault.
func (t *target) run(ctx context.Context) finding {
	path, err := t.programs.find(t.Program)
	if err != nil {
		return void("not asked: " + err.Error())
	}
	if t.programs.stuck.Load() >= maxStuck {
		f := void(fmt.Sprintf("not asked: %d programs cannot be ended", maxStuck))
		f.starved = true
		return f
	}
	group := t.programs.groups.make()
	output, news, process, err := t.start(path, group)
	if group != nil && err != nil && !probe.Shortage(err) {
		// The machine may forbid starting processes in a cgroup: seccomp(2) without clone3, a
		// threaded cgroup.
		group.remove()
		group = nil
		output, news, process, err = t.start(path, nil)
	}
	if err != nil {
		group.remove()
		return notAsked("start program: ", err)
	}
	defer output.Close()
	defer news.Close()
	// The process group has the process's id until the process is waited for. So a kill before that
	// cannot hit another group.
	kill := func() { _ = unix.Kill(-process.Pid, unix.SIGKILL); group.kill() }
	killed := make(chan struct{})
	ctx, tooMuch := context.WithCancelCause(ctx)
	defer tooMuch(nil)
	stop := context.AfterFunc(ctx, func() { kill(); close(killed) })
	lines := make(chan string, 1)
	go func() {
		text := listen(output)
		if len(text) > maxProgramOutput {
			tooMuch(errFlood)
		}
		lines <- firstLine(text)
	}()
	end := make(chan error, 1)
	go func() { end <- t.programs.waitEnd(process.Pid) }()
	_ = news.SetReadDeadline(time.Now().Add(t.Timeout + t.programs.giveUp))
	said, _ := io.ReadAll(io.LimitReader(news, maxWords))
	ended, gone := t.awaitEnd(ctx, end)
	if !gone {
		t.programs.stuck.Add(1)
		go func() {
			<-end
			kill()
			_, _ = process.Wait()
			group.remove()
			t.programs.stuck.Add(-1)
		}()
		return bad("program not done within %s, and cannot be ended", milliseconds(t.Timeout))
	}
	if !stop() {
		<-killed
	}
	kill()
	state, err := process.Wait()
	group.remove()
	// A process that left the group may still hold the other end of the pipe.
	_ = output.SetReadDeadline(time.Unix(1, 0))
	line := <-lines
	fault, begun := strings.CutPrefix(string(said), childReady)
	switch err = errors.Join(ended, err); {
	case err != nil:
		return void("not asked: wait for program: " + err.Error())
	case fault != "":
		return void("not asked: start program: " + fault)
	case !begun:
		return void("not asked: program not started within " + milliseconds(t.Timeout))
	case errors.Is(context.Cause(ctx), errFlood):
		return bad("program wrote more than %d bytes", maxProgramOutput)
	case state.Success():
		return good(cmp.Or(line, "exit 0"))
	case ctx.Err() != nil:
		return bad("program not done within %s", milliseconds(t.Timeout))
	}
	status := state.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return bad("%s", cmp.Or(line, "program ended by "+unix.SignalName(status.Signal())))
	}
	return bad("%s", cmp.Or(line, fmt.Sprintf("exit %d", status.ExitStatus())))
}

// awaitEnd waits for a program's end, and after its timeout for at most giveUp; gone is false if it
// did not end.
func (t *target) awaitEnd(ctx context.Context, end <-chan error) (err error, gone bool) {
	select {
	case err := <-end:
		return err, true
	case <-ctx.Done():
	}
	patience := time.NewTimer(t.programs.giveUp)
	defer patience.Stop()
	select {
	case err := <-end:
		return err, true
	case <-patience.C:
		return nil, false
	}
}

// start starts a process that becomes the program, in a process group of its own, with its output
// in a pipe. news carries Child's reports until the program begins or the process ends.
func (t *target) start(path string, g *group) (output, news *os.File, process *os.Process, err error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, nil, nil, err
	}
	defer null.Close()
	output, w, err := pipe()
	if err != nil {
		return nil, nil, nil, err
	}
	defer w.Close()
	news, tell, err := pipe()
	if err != nil {
		output.Close()
		return nil, nil, nil, err
	}
	defer tell.Close()
	u, seconds := t.programs.user, (t.Timeout+time.Second-1)/time.Second
	args := []string{childName, fmt.Sprint(u.UID), fmt.Sprint(u.GID), fmt.Sprint(int64(seconds)), path, t.Program}
	sys := &syscall.SysProcAttr{Setpgid: true}
	if g != nil {
		d, err := g.open()
		if err != nil {
			output.Close()
			news.Close()
			return nil, nil, nil, err
		}
		defer d.Close()
		sys.UseCgroupFD, sys.CgroupFD = true, int(d.Fd())
	}
	process, err = t.programs.launcher.start(append(args, t.Arguments.List()...), &os.ProcAttr{
		Dir: "/", Env: t.environment(), Files: []*os.File{null, w, w, tell}, Sys: sys,
	})
	if err != nil {
		output.Close()
		news.Close()
		return nil, nil, nil, err
	}
	return output, news, process, nil
}

// pipe makes a pipe of which only the read end is non-blocking, because programs expect a blocking
// write end.
func pipe() (r, w *os.File, err error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	_ = unix.SetNonblock(ends[0], true)
	return os.NewFile(uintptr(ends[0]), "pipe"), os.NewFile(uintptr(ends[1]), "pipe"), nil
}

// environment returns the whole environment of a program; the timeout is in seconds.
func (t *target) environment() []string {
	return []string{
		"SHUNT_ADDRESS=" + t.address.Addr().String(),
		"SHUNT_PORT=" + strconv.Itoa(int(t.address.Port())),
		"SHUNT_TIMEOUT=" + strconv.FormatFloat(t.Timeout.Seconds(), 'f', -1, 64),
		"PATH=" + programPath,
	}
}

// waitEnd waits for the end of a process and leaves it waitable, so that it still must be reaped.
func waitEnd(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// errFlood is the cause when a program is killed for writing too much.
var errFlood = errors.New("too much output")

// listen reads a program's output until all write ends are closed, or until the read deadline, at
// which it returns the buffered rest too. It returns at most one byte more than maxProgramOutput.
func listen(output *os.File) []byte {
	text := make([]byte, 0, maxProgramOutput+1)
	for len(text) < cap(text) {
		n, err := output.Read(text[len(text):cap(text)])
		text = text[:len(text)+n]
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return drain(output, text)
		}
		if err != nil {
			break
		}
	}
	return text
}

// drain appends the output that is buffered in the pipe.
func drain(output *os.File, text []byte) []byte {
	raw, err := output.SyscallConn()
	if err != nil {
		return text
	}
	_ = raw.Control(func(fd uintptr) {
		for len(text) < cap(text) {
			n, err := unix.Read(int(fd), text[len(text):cap(text)])
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil || n == 0 {
				return
			}
			text = text[:len(text)+n]
		}
	})
	return text
}

// firstLine returns the first line of the output, which is the reason in the answer.
func firstLine(text []byte) string {
	line, _, _ := strings.Cut(string(text[:min(len(text), 4*maxWords)]), "\n")
	return strings.TrimSpace(line)
}
