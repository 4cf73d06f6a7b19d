package domain

import (
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/schemas/gen/events"
)

// Orphan is a Deployment that bears an agent's label and names a workspace which is not known. It is left alone until an operator decides: adopted it
// becomes a workspace, deleted it is gone.
type Orphan struct {
	AgentID int64
	UID     string
	// Label names the workspace; any text.
	Label           string
	Namespace, Name string
	SeenAt          time.Time

	// DesiredRevision asks the dispatcher to delete it; 0 until somebody does. UserID is who did.
	DesiredRevision int64
	UserID          int64
	// Message is why its deletion failed last; empty otherwise.
	Message string
	// EndedAt is when it was deleted; zero before.
	EndedAt time.Time
}

// Sighting is what the cluster shows of an orphan.
type Sighting struct {
	// Image of its container; empty where no pod shows one.
	Image    string
	Replicas int
	// Revision that it was applied with; 0 without.
	Revision int64
}

// IsBeingDeleted tells that its deletion was asked for and is not over.
func (o Orphan) IsBeingDeleted() bool { return o.DesiredRevision > 0 && o.EndedAt.IsZero() }

// String names it as the command line does.
func (o Orphan) String() string {
	return strconv.FormatInt(o.AgentID, 10) + "/" + o.Namespace + "/" + o.Name
}

// Adopt makes a workspace of the orphan, with the creation's project, user, template, spec and namespace prefix: it has the orphan's id, name and namespace, is wanted
// as it is, and is applied with the next revision. The faults failed_precondition and invalid_argument say why that cannot be.
func (o Orphan) Adopt(s Sighting, c Creation) (Workspace, error) {
	if o.IsBeingDeleted() {
		return Workspace{}, fault.New(errcode.FailedPrecondition, "orphan %s is being deleted", o)
	}
	id, err := uuid.Parse(o.Label)
	if err != nil || id.String() != o.Label || id == uuid.Nil {
		return Workspace{}, fault.New(errcode.FailedPrecondition,
			"orphan %s cannot be adopted: its label %s is %q, which is no id of a workspace. Give it another one (a UUID), or delete it", o, LabelWorkspace, o.Label)
	}
	if c.NamespacePrefix == "" {
		c.NamespacePrefix = DefaultNamespacePrefix
	}
	if !strings.HasPrefix(o.Namespace, c.NamespacePrefix) {
		return Workspace{}, fault.New(errcode.FailedPrecondition,
			"orphan %s cannot be adopted: dispatchers only touch namespaces that begin with %s", o, c.NamespacePrefix)
	}
	c.Name, c.AgentID = o.Name, o.AgentID
	w, err := NewWorkspace(c)
	if err != nil {
		return Workspace{}, err
	}
	w.ID, w.Namespace = id, o.Namespace
	if s.Replicas == 0 {
		w.DesiredState = DesiredStopped
	}
	w.DesiredRevision = s.Revision + 1
	w.Cause = Cause{Kind: events.DesiredStateCauseAdopted, UserID: c.UserID}
	return w, nil
}

// Delete asks for its deletion, with a revision above what its cluster and, for the label, this database have.
func (o Orphan) Delete(userID, highest int64) Orphan {
	o.DesiredRevision, o.UserID, o.Message = max(highest, o.DesiredRevision)+1, userID, ""
	return o
}

// DeletionFailed takes in that it could not be deleted, or that its cluster has a newer revision than the one that asks for it: then that is gone beyond.
func (o Orphan) DeletionFailed(revision, clusterRevision int64, message string) Orphan {
	switch {
	case revision != o.DesiredRevision:
	case clusterRevision >= o.DesiredRevision:
		o.DesiredRevision = clusterRevision + 1
	default:
		o.Message = message
	}
	return o
}

// Deleting takes in that its deletion goes on.
func (o Orphan) Deleting(revision int64) Orphan {
	if revision == o.DesiredRevision {
		o.Message = ""
	}
	return o
}

// Deleted takes in that it is gone.
func (o Orphan) Deleted(revision int64, at time.Time) Orphan {
	if revision == o.DesiredRevision {
		o.Message, o.EndedAt = "", instant(at)
	}
	return o
}
