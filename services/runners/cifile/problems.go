package cifile

import "fmt"

// problems collects what is wrong with a file.
type problems struct {
	found []Problem
	more  int
}

// maxCollected bounds the memory for problems of a file that repeats one by aliases.
const maxCollected = 10_000

func (p *problems) addf(at Position, format string, arguments ...any) {
	if len(p.found) == maxCollected {
		p.more++
		return
	}
	p.found = append(p.found, Problem{Position: at, Message: fmt.Sprintf(format, arguments...)})
}
