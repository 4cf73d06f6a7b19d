package signing

import (
	"crypto/sha256"
	"time"

	"github.com/google/uuid"

	"lockstep.internal/libs/fault"
	"lockstep.internal/libs/jobtoken"
	"lockstep.internal/schemas/gen/errcode"
	"lockstep.internal/services/runners/assign"
	"lockstep.internal/services/runners/job"
)

// Issue makes the token for one claim of a job. It is valid until [Grace] after the timeout of the job on its runner.
// It permits to download the artifacts of the given jobs, at most [jobtoken.MaxArtifactJobs]. Errors are faults.
func (k *Keyring) Issue(claimed job.Job, artifactJobIDs []int64) (assign.Token, error) {
	id, key, err := k.current()
	if err != nil {
		return assign.Token{}, err
	}
	now := k.Now().UTC().Truncate(time.Second)
	expires := now.Add(min(claimed.RunTimeout, MaxTimeout) + Grace)
	scopes := []jobtoken.Scope{jobtoken.ScopeUpdate, jobtoken.ScopeTrace, jobtoken.ScopeUpload}
	if len(artifactJobIDs) > 0 {
		scopes = append(scopes, jobtoken.ScopeDownload)
	}
	if k.Registry {
		scopes = append(scopes, jobtoken.ScopeRegistryPull, jobtoken.ScopeRegistryPush)
	}
	token, err := jobtoken.Sign(id, key, jobtoken.Claims{
		ID: uuid.NewString(), JobID: claimed.ID, ProjectID: claimed.ProjectID, OrganizationID: claimed.OrganizationID,
		Attempt: claimed.Claims, Cell: k.Cell, Scopes: scopes, ArtifactJobIDs: artifactJobIDs,
		IssuedAt: now, ExpiresAt: expires,
	})
	if err != nil {
		return assign.Token{}, fault.Wrap(err, errcode.Internal, "make the token of job %d", claimed.ID)
	}
	return assign.Token{Value: token, Hash: Hash(token), ExpiresAt: expires}, nil
}

// Hash is what the database stores of a token.
func Hash(token string) [sha256.Size]byte { return sha256.Sum256([]byte(token)) }
