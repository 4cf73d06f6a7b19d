package processes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"lockstep.internal/libs/workspaceagent"
)

const (
	procFolder = "/proc"
	// tick is the unit of processor time in /proc: USER_HZ is 100 on all platforms of Linux that Go supports.
	tick = 10 * time.Millisecond
	// maxEnvironment is how much of an environment is read, in bytes: the kernel's limit for programs.
	maxEnvironment = 2 << 20
	// maxProcesses is the greatest number of processes of a sample.
	maxProcesses = 32_768
)

// Read returns the processes of the container with the marks of their environment. Those that were marked in the sample
// before are not read again. Processes of other users, and those that end meanwhile, are left out or have no mark.
func Read(ctx context.Context, workspace string, before Sample) ([]Process, error) {
	folder, err := os.Open(procFolder)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer folder.Close() //nolint:errcheck // it was only read
	names, err := folder.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []Process
	for _, name := range names {
		if _, err := strconv.Atoi(name); err != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("list processes: %w", err)
		}
		if len(found) == maxProcesses {
			return nil, fmt.Errorf("list processes: there are more than %d", maxProcesses)
		}
		data, err := os.ReadFile(filepath.Join(procFolder, name, "stat"))
		if err != nil {
			continue // it has ended
		}
		p, err := ParseStat(string(data))
		if err != nil {
			return nil, fmt.Errorf("list processes: %w", err)
		}
		if before.Processes[p.Key].StartedBy == Others {
			p.StartedBy = readMark(filepath.Join(procFolder, name, "environ"), workspace)
		}
		found = append(found, p)
	}
	return found, nil
}

// readMark returns the mark in the environment of a process; none if it cannot be read.
func readMark(path, workspace string) StartedBy {
	file, err := os.Open(path)
	if err != nil {
		return Others // another user's, or it has ended
	}
	defer file.Close() //nolint:errcheck // it was only read
	environment, err := io.ReadAll(io.LimitReader(file, maxEnvironment))
	if err != nil {
		return Others
	}
	return parseMark(string(environment), workspace)
}

func parseMark(environment, workspace string) StartedBy {
	for variable := range strings.SplitSeq(environment, "\x00") {
		switch variable {
		case Mark(Person, workspace):
			return Person
		case Mark(Editor, workspace):
			return Editor
		}
	}
	return Others
}

// Columns of /proc/PID/stat after the name of the program.
//
// See https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html.
const (
	columnParent       = 1
	columnTerminal     = 4
	columnUserTime     = 11
	columnSystemTime   = 12
	columnWaitedUser   = 13
	columnWaitedSystem = 14
	columnStart        = 19
)

var errStat = errors.New("not a line of /proc/PID/stat")

// ParseStat parses the file stat of a process. The name of the program, in parentheses, may have any character.
func ParseStat(line string) (Process, error) {
	id, rest, found := strings.Cut(line, " (")
	last := strings.LastIndex(rest, ") ")
	if !found || last < 0 {
		return Process{}, errStat
	}
	columns := strings.Fields(rest[last+2:])
	if len(columns) <= columnStart {
		return Process{}, errStat
	}
	var err error
	number := func(text string) int64 {
		n, parseErr := strconv.ParseInt(text, 10, 64)
		if parseErr != nil || n < 0 {
			// Waited times can be below 0 on old kernels: nothing.
			err = errors.Join(err, parseErr)
			return 0
		}
		return n
	}
	ticks := func(column int) time.Duration {
		return tick * time.Duration(min(number(columns[column]), int64(maxTicks)))
	}
	p := Process{
		Key:    Key{int(number(id)), uint64(number(columns[columnStart]))},
		Parent: int(number(columns[columnParent])), Name: workspaceagent.CleanProgramName(rest[:last]),
		Own:    ticks(columnUserTime) + ticks(columnSystemTime),
		Waited: ticks(columnWaitedUser) + ticks(columnWaitedSystem),
	}
	p.Terminal = columns[columnTerminal] != "0"
	if err != nil {
		return Process{}, fmt.Errorf("%w: %w", errStat, err)
	}
	return p, nil
}

// maxTicks prevents an overflow: 30 years.
const maxTicks = 100 * 3600 * 24 * 366 * 30
