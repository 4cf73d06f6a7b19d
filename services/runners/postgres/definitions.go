package postgres

import (
	"encoding/json"
	"sync"

	"lockstep.internal/services/runners/job"
)

// Definitions are definitions of jobs that wait for a runner or are with one, so that a claim does not read them. A
// definition never changes. They are safe for concurrent use.
type Definitions struct {
	limit int

	mu    sync.Mutex
	size  int
	known map[definitionKey]knownDefinition
}

type definitionKey struct {
	pipelineID int64
	name       string
}

func keyOf(j *job.Job) definitionKey { return definitionKey{j.PipelineID, j.Name} }

type knownDefinition struct {
	definition *job.Definition
	size       int
}

// NewDefinitions returns a memory for definitions of a size in bytes, as the database has them.
func NewDefinitions(limit int) *Definitions {
	return &Definitions{limit: limit, known: map[definitionKey]knownDefinition{}}
}

// get returns the definition of a job; nil for one that is not known.
func (d *Definitions) get(j *job.Job) *job.Definition {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.known[keyOf(j)].definition
}

// forget forgets the definition of a job that has ended.
func (d *Definitions) forget(j *job.Job) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.size -= d.known[keyOf(j)].size
	delete(d.known, keyOf(j))
}

// put remembers a definition. If there is no room, it forgets all: jobs that wait for long fill it.
func (d *Definitions) put(j *job.Job, content []byte) {
	if d == nil || len(content) > d.limit {
		return
	}
	definition := decodeDefinition(content)
	if definition == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.size += len(content) - d.known[keyOf(j)].size
	if d.size > d.limit {
		clear(d.known)
		d.size = len(content)
	}
	d.known[keyOf(j)] = knownDefinition{definition, len(content)}
}

// decodeDefinition returns nil for a definition that cannot be read.
func decodeDefinition(content []byte) *job.Definition {
	var d job.Definition
	if json.Unmarshal(content, &d) != nil {
		return nil
	}
	return &d
}
