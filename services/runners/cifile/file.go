package cifile

import (
	"time"

	"lockstep.internal/services/runners/cifile/condition"
)

// Limits bound what a file may contain. A zero field means the value of [DefaultLimits].
type Limits struct {
	Bytes    int // of the file
	Depth    int // of nested mappings and lists
	Weight   int // nodes plus bytes of text after aliases and extends were replaced by what they stand for
	Jobs     int // after parallel was expanded
	Parallel int // copies of one job
	Total    int // bytes of the definitions of all jobs after parallel was expanded
}

// DefaultLimits returns the limits that the service uses.
func DefaultLimits() Limits {
	return Limits{Bytes: 256 << 10, Depth: 32, Weight: 4 << 20, Jobs: 1000, Parallel: 200, Total: 16 << 20}
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	for _, f := range []struct{ field, value *int }{
		{&l.Bytes, &d.Bytes},
		{&l.Depth, &d.Depth},
		{&l.Weight, &d.Weight},
		{&l.Jobs, &d.Jobs},
		{&l.Parallel, &d.Parallel},
		{&l.Total, &d.Total},
	} {
		if *f.field == 0 {
			*f.field = *f.value
		}
	}
	return l
}

// Names of the stages that every file has, first and last.
const (
	StagePre  = ".pre"
	StagePost = ".post"
)

// File is the content of a .gitlab-ci.yml. Templates, whose names start with a dot, are applied and left out.
type File struct {
	Name      string   // for messages
	Stages    []string // in order, with .pre and .post
	Variables []Variable
	Jobs      []Job // in the order of the file
}

// Variable is a variable of the file or of a job.
type Variable struct {
	Name  string
	Value string
	Raw   bool // references to other variables in the value are not expanded
}

// Job is a job as the file defines it, after extends and default.
type Job struct {
	Position

	Name         string
	Stage        string
	BeforeScript []string
	Script       []string
	AfterScript  []string
	Tags         []string
	Variables    []Variable // without those of the file
	Needs        []Need
	HasNeeds     bool // with an empty Needs the job starts at once
	Artifacts    *Artifacts
	Rules        []Rule
	HasRules     bool // with empty Rules the job is never added
	When         When
	Timeout      time.Duration // 0: default of the project
	Retry        Retry
	AllowFailure AllowFailure
	Parallel     Parallel
}

// When tells in which case a job runs.
type When string

// Values of When.
const (
	OnSuccess When = "on_success" // no earlier job failed, or its failure is allowed
	OnFailure When = "on_failure" // an earlier job failed
	Always    When = "always"
	Never     When = "never" // in rules only: the job is not added
)

// Need is a job that has to finish first.
type Need struct {
	Position

	Job       string
	Artifacts bool // download them
	Optional  bool // the pipeline may be without the job
}

// Artifacts are the files that the runner uploads.
type Artifacts struct {
	Name      string
	Paths     []string
	Exclude   []string
	Untracked bool
	When      When
	ExpireIn  string // as in the file; empty: default of the service
}

// Rule adds the job, or with When never leaves it out, if its condition is true or absent.
type Rule struct {
	If           *condition.Condition
	When         When
	AllowFailure *bool // nil: as the job says
	Variables    []Variable
}

// Retry tells how often and after which failures a job is run again.
type Retry struct {
	Max  int      // 0 to 2
	When []string // reasons for failure; empty: always
}

// AllowFailure tells which failures of the job leave the pipeline successful.
type AllowFailure struct {
	Always            bool
	ExitCodes         []int
	OnDeniedAdmission bool // the failure that an admission controller caused by denying the job
}

// Parallel expands a job into copies: Total copies, or one for each combination of each entry of Matrix. The zero value
// is a single job.
type Parallel struct {
	Total  int
	Matrix [][]Axis
}

// Axis is a variable of a matrix with its values.
type Axis struct {
	Name   string
	Values []string
}

// Copies returns the number of jobs.
func (p Parallel) Copies() int {
	if len(p.Matrix) == 0 {
		return max(p.Total, 1)
	}
	total := 0
	for _, entry := range p.Matrix {
		total += combinations(entry)
	}
	return total
}

// combinations counts up to a number beyond every limit.
func combinations(entry []Axis) int {
	const enough = 1 << 20
	n := 1
	for _, a := range entry {
		n = min(n*len(a.Values), enough)
	}
	return n
}
