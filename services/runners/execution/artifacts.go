package execution

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/artifact"
	"lockstep.internal/services/runners/gitlab"
	"lockstep.internal/services/runners/job"
	"lockstep.internal/services/runners/objects"
)

// defaultURLTime is how long an address for a download is valid.
const defaultURLTime = 5 * time.Minute

// ArtifactConfig of [Artifacts]. All fields are required, unless they have a default.
type ArtifactConfig struct {
	Jobs    *Jobs
	Store   ArtifactStore
	Objects objects.Store
	Sizes   artifact.Sizes
	Bounds  artifact.Bounds
	Expiry  artifact.Expiry
	// URLTime is how long a runner may begin a download at the address that it gets. Defaults to 5 min.
	URLTime time.Duration
}

// Artifacts receives and sends the artifacts of jobs. It is safe for concurrent use.
//
// The key of an object is recorded as unused before its content is stored. One transaction checks the state of the job,
// stores the artifact and removes the record. Whatever else happens leaves an unused object, which [Cleaner] deletes.
type Artifacts struct{ cfg ArtifactConfig }

var _ gitlab.Artifacts = (*Artifacts)(nil)

// NewArtifacts returns a server of artifacts.
func NewArtifacts(cfg ArtifactConfig) *Artifacts {
	cfg.URLTime = cmp.Or(cfg.URLTime, defaultURLTime)
	return &Artifacts{cfg}
}

// Store implements [gitlab.Artifacts]. A job has one artifact of each type. The same file again is accepted; another
// one replaces it while the job is running.
func (a *Artifacts) Store(
	ctx context.Context, ref gitlab.JobRef, upload gitlab.Upload, content io.Reader,
) (gitlab.JobState, error) {
	made, kind, err := a.describe(ref.ID, upload)
	if err != nil {
		return gitlab.JobState{}, err
	}
	state, err := a.cfg.Jobs.Authorize(ctx, ref, jobtoken.ScopeUpload)
	if err != nil {
		return state, err
	}
	received, err := artifact.Receive(ctx, a.Reserving(), artifact.Upload{
		JobID: ref.ID, Kind: kind, Limit: a.cfg.Sizes.Of(kind.Type), Bounds: a.cfg.Bounds,
	}, content)
	if err != nil {
		return state, err
	}
	made.Object, made.Size, made.SHA256 = received.Key, received.Info.Size, received.Info.SHA256
	return a.keep(ctx, ref, made)
}

// describe returns the artifact of an upload without its content.
func (a *Artifacts) describe(jobID int64, upload gitlab.Upload) (Artifact, artifact.Kind, error) {
	kind, err := artifact.ParseKind(upload.Type, upload.Format)
	if err != nil {
		return Artifact{}, kind, err
	}
	if err := artifact.ValidateFilename(upload.Filename); err != nil {
		return Artifact{}, kind, err
	}
	now := a.cfg.Jobs.cfg.Now().UTC()
	expires, _, err := artifact.ExpiresAt(now, upload.ExpireIn, a.cfg.Expiry)
	return Artifact{
		JobID: jobID, Type: kind.Type, Format: string(kind.Format), Filename: upload.Filename, CreatedAt: now,
		ExpiresAt: expires,
	}, kind, err
}

// keep stores an artifact whose content is stored, if its job is still with the runner.
func (a *Artifacts) keep(ctx context.Context, ref gitlab.JobRef, made Artifact) (gitlab.JobState, error) {
	r, err := a.cfg.Jobs.request(ctx, ref)
	if err != nil {
		return gitlab.JobState{}, err
	}
	var state gitlab.JobState
	err = a.cfg.Jobs.cfg.Store.UpdateJob(ctx, ref.ID, func(s Snapshot) (Decision, error) {
		state = gitlab.JobState{}
		err := r.owns(s)
		if err != nil {
			return Decision{}, err
		}
		if state, err = a.cfg.Jobs.state(s, r.now); err != nil {
			return Decision{}, err
		}
		if err := r.authorize(s, jobtoken.ScopeUpload); err != nil {
			return Decision{}, err
		}
		same, err := replaces(s, made)
		if same || err != nil {
			return Decision{}, err
		}
		return Decision{Contact: r.now, Artifact: &made}, nil
	})
	return state, void(err)
}

// replaces reports whether the job has the same artifact already. It is an error if the artifact must not be replaced.
func replaces(s Snapshot, made Artifact) (same bool, err error) {
	at := slices.IndexFunc(s.Artifacts, func(a Artifact) bool { return a.Type == made.Type })
	switch {
	case at < 0:
		return false, nil
	case s.Artifacts[at].SHA256 == made.SHA256 && s.Artifacts[at].Filename == made.Filename:
		return true, nil
	case s.Job.State != job.Running:
		return false, fault.New(errcode.PermissionDenied,
			"job %d has another artifact of the type %s, which is replaced only while the job is running", made.JobID, made.Type)
	default:
		return false, nil
	}
}

// Reserving returns the store of objects, which records each key as unused before its content is stored.
func (a *Artifacts) Reserving() artifact.Store { return reserving{a.cfg.Objects, a} }

// reserving records each key before its content is stored.
type reserving struct {
	objects.Store

	artifacts *Artifacts
}

// Put implements [artifact.Store].
func (s reserving) Put(ctx context.Context, key string, content io.Reader, limit int64) (objects.Info, error) {
	cfg := s.artifacts.cfg
	if err := cfg.Store.Reserve(ctx, key, cfg.Jobs.cfg.Now()); err != nil {
		return objects.Info{}, err
	}
	return s.Store.Put(ctx, key, content, limit)
}

// Open implements [gitlab.Artifacts]. The token is that of the job that downloads; ref.ID is the job whose artifacts it
// downloads.
func (a *Artifacts) Open(ctx context.Context, ref gitlab.JobRef, direct bool) (gitlab.Download, error) {
	if err := a.mayOpen(ctx, ref); err != nil {
		return gitlab.Download{}, err
	}
	return a.open(ctx, ref.ID, direct)
}

// Archive returns the archive of a job for a caller who may read it.
func (a *Artifacts) Archive(ctx context.Context, jobID int64) (gitlab.Download, error) {
	return a.open(ctx, jobID, true)
}

func (a *Artifacts) open(ctx context.Context, jobID int64, direct bool) (gitlab.Download, error) {
	found, err := a.cfg.Store.Find(ctx, jobID, artifact.Archive)
	if err != nil {
		return gitlab.Download{}, err
	}
	if found == nil || found.Expired(a.cfg.Jobs.cfg.Now()) {
		return gitlab.Download{}, fault.New(errcode.NotFound, "job %d has no artifacts, or they have expired", jobID)
	}
	if direct {
		location, err := a.cfg.Objects.URL(ctx, found.Object, found.Filename, a.cfg.URLTime)
		if err != nil {
			return gitlab.Download{}, fmt.Errorf("make the address of artifacts of job %d: %w", jobID, err)
		}
		if location != "" {
			return gitlab.Download{Filename: found.Filename, Location: location, Size: found.Size}, nil
		}
	}
	content, size, err := a.cfg.Objects.Open(ctx, found.Object)
	if err != nil {
		return gitlab.Download{}, fmt.Errorf("open the artifacts of job %d: %w", jobID, err)
	}
	return gitlab.Download{Filename: found.Filename, Size: size, Content: content}, nil
}

// mayOpen checks that a running job may download the artifacts.
func (a *Artifacts) mayOpen(ctx context.Context, ref gitlab.JobRef) error {
	claims, err := a.cfg.Jobs.cfg.Tokens.Authentic(ctx, ref.Token)
	if err != nil {
		return err
	}
	if !claims.PermitsArtifacts(ref.ID) {
		return fault.New(errcode.PermissionDenied, "the token does not permit to download the artifacts of job %d", ref.ID)
	}
	_, err = a.cfg.Jobs.Authorize(ctx, gitlab.JobRef{ID: claims.JobID, Token: ref.Token}, jobtoken.ScopeDownload)
	if fault.Is(err, errcode.NotFound) {
		return notValid() // the job of the token was deleted
	}
	return err
}
