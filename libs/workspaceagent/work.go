package workspaceagent

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// SubsystemProcesses is the subsystem of SSH that answers with a [WorkReport] as JSON.
const SubsystemProcesses = "processes@lockstep.dev"

const (
	// MaxWorkReport is the greatest size of a report in bytes.
	MaxWorkReport = 4096
	// MaxPrograms is the number of programs of a report.
	MaxPrograms = 5
	// maxProgramName is the length of names in the kernel, in bytes.
	maxProgramName = 15
)

// WorkReport is whether programs that people have started work.
type WorkReport struct {
	// WorkedMSAgo is the time since they were last seen to work, in milliseconds. Nil for never since the agent started.
	WorkedMSAgo *int64 `json:"worked_ms_ago,omitempty"`
	// Programs are those that worked then, the busiest first.
	Programs []WorkedProgram `json:"programs,omitempty"`
}

// WorkedProgram is a program that has worked.
type WorkedProgram struct {
	Name        string `json:"name"`
	ProcessorMS int64  `json:"processor_ms"`
}

// ParseWorkReport reads a report. Who works in the workspace may have written it: names are cleaned.
func ParseWorkReport(data []byte) (WorkReport, error) {
	var r WorkReport
	if len(data) > MaxWorkReport {
		return r, fmt.Errorf("the report has more than %d bytes", MaxWorkReport)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return WorkReport{}, fmt.Errorf("the report is not valid: %w", err)
	}
	switch {
	case r.WorkedMSAgo == nil:
		return WorkReport{}, nil
	case *r.WorkedMSAgo < 0:
		return WorkReport{}, errors.New("the report is not valid: worked_ms_ago is less than 0")
	case len(r.Programs) == 0 || len(r.Programs) > MaxPrograms:
		return WorkReport{}, fmt.Errorf("the report is not valid: it has %d programs, not 1 to %d", len(r.Programs),
			MaxPrograms)
	}
	for i := range r.Programs {
		p := &r.Programs[i]
		p.Name = CleanProgramName(p.Name)
		if p.ProcessorMS < 0 {
			return WorkReport{}, fmt.Errorf("the report is not valid: programs[%d].processor_ms is less than 0", i)
		}
	}
	return r, nil
}

// CleanProgramName returns a name that can be printed, of 1 to 15 bytes. Programs choose their names.
func CleanProgramName(name string) string {
	clean := strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, name)
	for len(clean) > maxProgramName {
		_, size := utf8.DecodeLastRuneInString(clean)
		clean = clean[:len(clean)-size]
	}
	if clean == "" {
		return "?"
	}
	return clean
}
