package ingest

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"lockstep.internal/libs/logkey"
	"lockstep.internal/services/state/agent"
)

// EndedResync is a full resync that has ended and is not judged yet. An agent has at most one.
//
// To judge a resync is to compare its members with the stored objects. Package judge does it after the end event is
// stored, so that a comparison of all objects delays no batch. The result does not depend on the time of the
// judgement: a batch that could change it judges first. Such a batch begins the next resync, which may begin an epoch
// and forgets the members, or has a late version that the lists cover. Every other later version is above the lists,
// so its object is neither absent nor removable. Workspaces are recomputed from the rows at the time of the judgement.
type EndedResync struct {
	AgentID    int64
	ID         string
	ClusterUID string
	Epoch      int64
	// Listed has the version of each list, by kind.
	Listed agent.Versions
	Begun  time.Time
	Ended  time.Time
	// Expected is the number of members in the begin event, Count the one in the end event.
	Expected, Count int64
}

// covers reports whether the resync listed the object's kind at its version or a higher one.
func (r *EndedResync) covers(o *Object) bool {
	listed, isListed := r.Listed[o.Kind]
	return isListed && agent.CompareVersions(o.ResourceVersion, listed) <= 0
}

// IsComplete reports whether all members were received.
func (r *EndedResync) IsComplete(received int64) bool {
	return received == r.Expected && r.Count == r.Expected
}

// Findings are what a complete resync shows about an agent. They are read without a lock. The store checks each object
// again when it is changed; a workspace is recomputed from its current objects.
type Findings struct {
	// Absent are objects that exist, are covered by the lists and are no members.
	Absent []AbsentObject
	// Removable are rows of deleted objects, except Deployments, that the lists cover. Older versions of them are
	// not reported any more.
	Removable []ObjectKey
	// Differing are workspaces without a Deployment, or with one whose UID or revision is not the applied one.
	Differing []uuid.UUID
	// Unowned are existing Deployments with the label of no workspace that exists and is not terminated.
	Unowned []ObjectKey
}

// AbsentObject is an object that a resync did not list.
type AbsentObject struct {
	Key ObjectKey
	// WorkspaceID is zero if the object belongs to no workspace.
	WorkspaceID uuid.UUID
}

// findingsChunk limits the findings of one transaction. Findings of one workspace are not divided.
const findingsChunk = 200

func (f *Findings) size() int {
	return len(f.Absent) + len(f.Removable) + len(f.Differing) + len(f.Unowned)
}

// chunks divides the findings into transactions of about limit findings.
func (f *Findings) chunks(limit int) []Findings {
	var chunks []Findings
	var chunk Findings
	next := func() {
		if chunk.size() >= limit {
			chunks, chunk = append(chunks, chunk), Findings{}
		}
	}
	absent := map[uuid.UUID][]AbsentObject{}
	for _, o := range f.Absent {
		absent[o.WorkspaceID] = append(absent[o.WorkspaceID], o)
	}
	for _, o := range absent[uuid.Nil] {
		chunk.Absent = append(chunk.Absent, o)
		next()
	}
	delete(absent, uuid.Nil)
	differing := map[uuid.UUID]bool{}
	for _, id := range f.Differing {
		differing[id] = true
	}
	workspaces := slices.AppendSeq(slices.Clone(f.Differing), maps.Keys(absent))
	slices.SortFunc(workspaces, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
	for _, id := range slices.Compact(workspaces) {
		chunk.Absent = append(chunk.Absent, absent[id]...)
		if differing[id] {
			chunk.Differing = append(chunk.Differing, id)
		}
		next()
	}
	for _, key := range f.Removable {
		chunk.Removable = append(chunk.Removable, key)
		next()
	}
	for _, key := range f.Unowned {
		chunk.Unowned = append(chunk.Unowned, key)
		next()
	}
	if chunk.size() > 0 {
		chunks = append(chunks, chunk)
	}
	return chunks
}

// Judgement is the comparison of a full resync with the stored objects.
type Judgement struct {
	Resync EndedResync
	// Received is the number of stored members.
	Received int64
	// Findings are empty if the resync is incomplete.
	Findings Findings
}

// Steps divides a judgement into transactions, at least one. The last one stores the outcome of the resync. If not all
// steps are stored, the next judgement finds what is left.
func (j *Judgement) Steps() []JudgementStep {
	chunks := j.Findings.chunks(findingsChunk)
	steps := make([]JudgementStep, max(1, len(chunks)))
	for n := range steps {
		steps[n] = JudgementStep{judgement: j, isLast: n == len(steps)-1}
		if n < len(chunks) {
			steps[n].findings = chunks[n]
		}
	}
	return steps
}

// JudgementStep is a part of a judgement that is stored in one transaction.
type JudgementStep struct {
	judgement *Judgement
	findings  Findings
	isLast    bool
}

// StoreJudgement stores a step in its own transaction. It locks the agent, as a batch does. It returns false and
// changes nothing if the resync is already judged.
func (i *Ingest) StoreJudgement(ctx context.Context, s Store, step JudgementStep) (bool, error) {
	b := i.newObservedBatch(s)
	r := step.judgement.Resync
	locked, err := s.LockAgents(ctx, []int64{r.AgentID}, nil)
	if err != nil {
		return false, err
	}
	if locked.Ended[r.AgentID].ID != r.ID {
		return false, nil
	}
	b.LockedAgents = locked
	if err := b.storeStep(ctx, step); err != nil {
		return false, err
	}
	return true, b.storeChanges(ctx)
}

// judge judges the agent's ended resync, if there is one, in the transaction of the batch.
func (b *observedBatch) judge(ctx context.Context, agentID int64) error {
	r, ended := b.Ended[agentID]
	if !ended {
		return nil
	}
	judgement, err := b.store.Judge(ctx, r)
	if err != nil {
		return err
	}
	for _, step := range judgement.Steps() {
		if err := b.storeStep(ctx, step); err != nil {
			return err
		}
	}
	return nil
}

// storeStep stores the findings of a step and collects the changed workspaces and orphans.
func (b *observedBatch) storeStep(ctx context.Context, step JudgementStep) error {
	r, findings := step.judgement.Resync, step.findings
	if err := b.store.RemoveDeleted(ctx, r, findings.Removable); err != nil {
		return err
	}
	absent, err := b.store.MarkAbsent(ctx, r, findings.Absent)
	if err != nil {
		return err
	}
	end := &Observed{AgentID: r.AgentID, ClusterUID: r.ClusterUID, At: r.Ended}
	for i := range absent {
		b.objectChanged(&absent[i], end, "")
	}
	for _, workspaceID := range findings.Differing {
		b.changes.get(workspaceID, r.Ended).resyncBegunAt = r.Begun
	}
	found, err := b.store.DeploymentsOfTerminated(ctx, r, findings.Unowned)
	if err != nil {
		return err
	}
	b.orphans = append(b.orphans, found...)
	if !step.isLast {
		return nil
	}
	return b.closeResync(ctx, step.judgement)
}

// closeResync stores the outcome of a judged resync.
func (b *observedBatch) closeResync(ctx context.Context, j *Judgement) error {
	r := j.Resync
	complete := r.IsComplete(j.Received)
	delete(b.Ended, r.AgentID)
	b.Metrics.resyncEnded(complete)
	if !complete {
		b.Logger.WarnContext(ctx, "a full resync is incomplete; objects that it did not list are kept",
			slog.Int64(logkey.AgentID, r.AgentID), slog.String(logkey.ResyncID, r.ID),
			slog.Int64(logkey.Count, j.Received), slog.Int64(logkey.Expected, r.Expected))
	}
	return b.store.CloseResync(ctx, r, j.Received, complete)
}
