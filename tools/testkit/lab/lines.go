package lab

import (
	"strings"
	"sync"
)

// keptBytes is the length of the end of an output that is kept for an error.
const keptBytes = 8 << 10

// lastLines keeps the end of what is written to it.
type lastLines struct {
	mu   sync.Mutex
	text []byte
}

func (l *lastLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	if extra := len(l.text) - keptBytes; extra > 0 {
		l.text = append([]byte(nil), l.text[extra:]...)
	}
	return len(p), nil
}

func (l *lastLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(string(l.text))
}
