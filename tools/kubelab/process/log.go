package process

import (
	"bytes"
	"sync"
	"time"
)

const (
	// maxLines is the number of the last lines of a log that are kept.
	maxLines = 1000
	// maxLine is the length at which a line is broken, in bytes.
	maxLine = 16 << 10
)

// Line is one line of a log.
type Line struct {
	Time time.Time
	Text string
}

// Log is the output of one run of a process. It is safe for concurrent use.
type Log struct {
	mu      sync.Mutex
	lines   []Line
	first   int // index of lines[0]
	partial []byte
	ended   bool
	changed chan struct{}
}

func newLog() *Log { return &Log{changed: make(chan struct{})} }

// Write appends output.
func (l *Log) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partial = append(l.partial, data...)
	for {
		end := bytes.IndexByte(l.partial, '\n')
		switch {
		case end >= 0:
			l.append(l.partial[:end])
			l.partial = l.partial[end+1:]
		case len(l.partial) >= maxLine:
			l.append(l.partial[:maxLine])
			l.partial = l.partial[maxLine:]
		default:
			return len(data), nil
		}
	}
}

func (l *Log) append(text []byte) {
	l.lines = append(l.lines, Line{Time: time.Now(), Text: string(text)})
	if extra := len(l.lines) - maxLines; extra > 0 {
		l.lines, l.first = append([]Line{}, l.lines[extra:]...), l.first+extra
	}
	l.notify()
}

func (l *Log) notify() {
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *Log) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.partial) > 0 {
		l.append(l.partial)
	}
	l.partial, l.ended = nil, true
	l.notify()
}

// Lines returns the lines from an index on, and the index after them. changed is closed when there are more; it is nil
// after the end of the process.
func (l *Log) Lines(from int) (lines []Line, next int, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from = max(from, l.first)
	next = l.first + len(l.lines)
	if from < next {
		lines = append(lines, l.lines[from-l.first:]...)
	}
	if !l.ended {
		changed = l.changed
	}
	return lines, next, changed
}
