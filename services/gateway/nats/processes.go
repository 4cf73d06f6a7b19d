package nats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lockstep.internal/libs/workspaceagent"
	"lockstep.internal/schemas/gen/events"
)

// Rounds are rounds of work that one of the replicas does: a round is a code that is used once.
type Rounds struct {
	Codes

	// Name of the work.
	Name string
}

// Claim reports whether this replica does the round that begins at a time.
func (r Rounds) Claim(ctx context.Context, round time.Time, interval time.Duration) (bool, error) {
	err := r.Use(ctx, fmt.Sprintf("%s/%d", r.Name, round.UnixMilli()), interval)
	if errors.Is(err, ErrUsed) {
		return false, nil
	}
	return err == nil, err
}

// Worked publishes that programs that people have started have worked.
func (p ActivityPublisher) Worked(
	ctx context.Context, workspace string, at time.Time, programs []workspaceagent.WorkedProgram,
) error {
	data := events.ActivityProcesses{WorkspaceID: workspace, WorkedAt: at.UTC()}
	for _, program := range programs {
		data.Programs = append(data.Programs, events.WorkingProgram{
			Name: program.Name, ProcessorMs: int(program.ProcessorMS),
		})
	}
	return p.publishEvent(ctx, events.TypeActivityProcesses, workspace, at, data)
}
