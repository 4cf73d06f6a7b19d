package nats

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/cursor"
	"lockstep.internal/libs/event"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/topology"
	"lockstep.internal/schemas/gen/events"
	"lockstep.internal/services/admission/decide"
	"lockstep.internal/services/admission/postgres"
)

const (
	consumerName = "jobs"
	// unknownTimeout is how long a project may be missing in the directory before its jobs are dead-lettered: they fail at
	// their deadlines. A project that has just been created may arrive later than its first job.
	unknownTimeout = 15 * time.Second
	// evaluationTimeout bounds the evaluation of conditions and policies in one transaction. The dispatcher evaluates the
	// other jobs, so that a slow policy does not hold back the jobs of other projects.
	evaluationTimeout = 250 * time.Millisecond
)

// JobEvent is what admission reads of an event of a job.
type JobEvent struct {
	JobID int64
	// Preparing is the job that waits for admission; nil for any other event.
	Preparing *decide.Subject
	// Over: the job no longer waits for admission.
	Over bool
}

// Directory knows projects. [directory.Directory] implements it, with its groups.
type Directory interface {
	Groups(projectID int64) ([]int64, bool)
}

// Reader reads the stream JOBS. All fields are required, except Metrics.
type Reader struct {
	Pool      *pgxpool.Pool
	JetStream jetstream.JetStream
	Consumers cursor.Consumers
	Cell      topology.Cell
	Logger    *slog.Logger
	Directory Directory
	Jobs      postgres.Jobs
	Decider   *decide.Decider
	Now       func() time.Time
	Metrics   *cursor.Metrics

	// unknownSince is used by the transaction of one batch at a time.
	unknownSince map[int64]time.Time
}

// Consumer returns the consumer of the stream.
func (r *Reader) Consumer() (*cursor.Consumer[JobEvent], error) {
	r.unknownSince = map[int64]time.Time{}
	c, err := cursor.New(cursor.Config[JobEvent]{
		Name: consumerName, Stream: topology.StreamJobs, Pool: r.Pool, JetStream: r.JetStream, Consumers: r.Consumers,
		Logger: r.Logger, Cell: r.Cell, Service: natsauth.PrincipalAdmission, Metrics: r.Metrics,
		Decode: func(m *cursor.Message[JobEvent]) (err error) {
			m.Value, err = decodeJob(m)
			return err
		},
		Handle: r.handle,
	})
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", topology.StreamJobs, err)
	}
	return c, nil
}

func decodeJob(m *cursor.Message[JobEvent]) (JobEvent, error) {
	decoded, err := event.Decode(m.Header, m.Data)
	if err != nil {
		return JobEvent{}, fmt.Errorf("decode an event of a job: %w", err)
	}
	return DecodeJob(decoded)
}

// DecodeJob returns what admission reads of an event of a job.
func DecodeJob(e event.Event) (JobEvent, error) {
	var data events.JobPreparing
	if err := json.Unmarshal(e.Data(), &data); err != nil {
		return JobEvent{}, fmt.Errorf("decode an event of a job: %w", err)
	}
	j := data.Job
	if j.JobID <= 0 || j.ProjectID <= 0 {
		return JobEvent{}, fmt.Errorf("the event is about no job: job_id %d, project_id %d", j.JobID, j.ProjectID)
	}
	out := JobEvent{JobID: int64(j.JobID)}
	if j.State != events.JobStatePreparing {
		out.Over = j.State != events.JobStateCreated
		return out, nil
	}
	if !strings.HasSuffix(e.Type(), ".job.preparing.v1") {
		return out, nil
	}
	begun := e.Time().UTC()
	if j.PreparingSince != nil {
		begun = j.PreparingSince.UTC()
	}
	out.Preparing = &decide.Subject{
		JobID: int64(j.JobID), Preparation: int64(data.Preparation), PipelineID: int64(j.PipelineID),
		ProjectID: int64(j.ProjectID), OrganizationID: int64(j.OrganizationID), UserID: int64(data.UserID),
		UserLogin: data.Variables["GITLAB_USER_LOGIN"], Name: j.Name, Stage: j.Stage, Protected: j.Protected,
		Attempt: int64(j.Attempt), Tags: j.Tags, Variables: data.Variables, BegunAt: begun, Deadline: data.Deadline.UTC(),
	}
	return out, nil
}

// handle begins and ends admissions. Of several events of a job the last one counts.
func (r *Reader) handle(ctx context.Context, tx pgx.Tx, batch []cursor.Message[JobEvent]) error {
	latest := map[int64]*cursor.Message[JobEvent]{}
	for i := range batch {
		if v := &batch[i].Value; v.Preparing != nil || v.Over {
			latest[v.JobID] = &batch[i]
		}
	}
	if len(latest) == 0 {
		return nil
	}
	ids := slices.Sorted(maps.Keys(latest))
	stored, err := r.Jobs.Lock(ctx, tx, ids)
	if err != nil {
		return err
	}
	var begin []*decide.Subject
	var dead cursor.DeadLetterErrors
	for _, id := range ids {
		m := latest[id]
		known, found := stored[id]
		if m.Value.Over {
			if found && known.Open() {
				if err := r.cancel(ctx, tx, known); err != nil {
					return err
				}
			}
			continue
		}
		if found && known.Preparation >= m.Value.Preparing.Preparation {
			continue
		}
		if err := r.requireProject(m.Value.Preparing); err != nil {
			if time.Since(r.unknownSince[m.Value.Preparing.ProjectID]) < unknownTimeout {
				return err
			}
			dead = append(dead, &cursor.DeadLetterError{Sequence: m.Sequence, Err: err})
			continue
		}
		begin = append(begin, m.Value.Preparing)
	}
	if len(dead) > 0 {
		return dead
	}
	return r.begin(ctx, tx, begin)
}

// requireProject returns an error for a job of a project that the directory does not have: its groups may have
// controllers.
func (r *Reader) requireProject(s *decide.Subject) error {
	if _, found := r.Directory.Groups(s.ProjectID); found {
		delete(r.unknownSince, s.ProjectID)
		return nil
	}
	if _, waiting := r.unknownSince[s.ProjectID]; !waiting {
		r.unknownSince[s.ProjectID] = time.Now()
	}
	return fmt.Errorf("job %d: project %d is not in the directory", s.JobID, s.ProjectID)
}

func (r *Reader) cancel(ctx context.Context, tx pgx.Tx, known decide.Job) error {
	after, ask := r.Decider.Cancel(known, r.Now())
	return r.Jobs.SaveIn(ctx, tx, known, after, ask)
}

func (r *Reader) begin(ctx context.Context, tx pgx.Tx, subjects []*decide.Subject) error {
	if len(subjects) == 0 {
		return nil
	}
	projects, groups := map[int64]bool{}, map[int64]bool{}
	for _, s := range subjects {
		projects[s.ProjectID] = true
		of, _ := r.Directory.Groups(s.ProjectID)
		for _, id := range of {
			groups[id] = true
		}
	}
	controllers, err := postgres.Deciding(ctx, tx, slices.Collect(maps.Keys(projects)), slices.Collect(maps.Keys(groups)))
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, evaluationTimeout)
	defer cancel()
	begun := make([]postgres.Begun, len(subjects))
	for i, s := range subjects {
		begun[i].Job, begun[i].Ask, begun[i].Evaluated = r.Decider.Begin(limited, *s, controllers, r.Now())
	}
	return r.Jobs.Begin(ctx, tx, begun)
}
