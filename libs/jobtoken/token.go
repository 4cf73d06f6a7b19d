package jobtoken

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"lockstep.internal/libs/topology"
)

// Prefix of the tokens. People and secret scanners recognize it.
const Prefix = "glcbt-"

const (
	// MaxLength of a token in bytes.
	MaxLength = 4 << 10
	// MaxArtifactJobs is the maximum number of jobs whose artifacts one token may download.
	MaxArtifactJobs = 64
	// MaxIDLength is the maximum length of a token's id in bytes.
	MaxIDLength = 64
	// mediaType separates job tokens from other JWTs.
	mediaType = "job+jwt"
)

// Scope is a right of a token.
type Scope string

// The scopes.
const (
	// ScopeUpdate changes the state of the job.
	ScopeUpdate Scope = "job_update"
	// ScopeTrace appends to the trace of the job.
	ScopeTrace Scope = "job_trace"
	// ScopeUpload uploads artifacts of the job.
	ScopeUpload Scope = "artifacts_upload"
	// ScopeDownload downloads artifacts of the jobs in [Claims.ArtifactJobIDs].
	ScopeDownload Scope = "artifacts_download"
	// ScopeRegistryPull and ScopeRegistryPush are rights on the container registry of the project.
	ScopeRegistryPull Scope = "registry_pull"
	ScopeRegistryPush Scope = "registry_push"
)

// Claims is the content of a token.
type Claims struct {
	// ID is random: no two tokens have the same one, also after the database of a cell was restored. Required, up to
	// [MaxIDLength] bytes.
	ID string
	// JobID, ProjectID and OrganizationID are required, above zero.
	JobID, ProjectID, OrganizationID int64
	// Attempt counts the runs of the job from 1 on. Zero if jobs are not repeated under their id.
	Attempt int
	// Cell whose job it is. Required.
	Cell topology.Cell
	// Scopes are the rights, at least one.
	Scopes []Scope
	// ArtifactJobIDs are the jobs whose artifacts ScopeDownload permits to download, at most [MaxArtifactJobs].
	ArtifactJobIDs []int64
	// IssuedAt and ExpiresAt bound the validity; encoded in whole seconds. Required.
	IssuedAt, ExpiresAt time.Time
}

// Permits reports whether the token has the scope.
func (c Claims) Permits(scope Scope) bool { return slices.Contains(c.Scopes, scope) }

// PermitsArtifacts reports whether the token may download the artifacts of a job.
func (c Claims) PermitsArtifacts(jobID int64) bool {
	return c.Permits(ScopeDownload) && slices.Contains(c.ArtifactJobIDs, jobID)
}

// payload is the JWT encoding of Claims.
type payload struct {
	jwt.RegisteredClaims

	JobID          int64   `json:"job_id"`
	ProjectID      int64   `json:"project_id"`
	OrganizationID int64   `json:"organization_id"`
	Attempt        int     `json:"attempt,omitempty"`
	Cell           string  `json:"cell"`
	Scopes         []Scope `json:"scopes"`
	ArtifactJobIDs []int64 `json:"artifact_job_ids,omitempty"`
}

// ErrInvalidClaims is wrapped by the errors of [Sign], for claims that no verifier would accept.
var ErrInvalidClaims = errors.New("invalid claims of a job token")

// Sign returns the token. Store its hash.
func Sign(keyID string, key ed25519.PrivateKey, c Claims) (string, error) {
	if len(key) != ed25519.PrivateKeySize || !validKeyID(keyID) {
		return "", fmt.Errorf("%w: a private key of %d bytes with the id %q", ErrInvalidClaims, len(key), keyID)
	}
	if err := c.validate(); err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalidClaims, err)
	}
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, payload{
		RegisteredClaims: jwt.RegisteredClaims{
			ID: c.ID, IssuedAt: jwt.NewNumericDate(c.IssuedAt), ExpiresAt: jwt.NewNumericDate(c.ExpiresAt),
		},
		JobID: c.JobID, ProjectID: c.ProjectID, OrganizationID: c.OrganizationID, Attempt: c.Attempt,
		Cell: string(c.Cell), Scopes: c.Scopes, ArtifactJobIDs: c.ArtifactJobIDs,
	})
	token.Header["kid"], token.Header["typ"] = keyID, mediaType
	signed, err := token.SignedString(key)
	if err != nil {
		return "", fmt.Errorf("sign a job token: %w", err)
	}
	if len(Prefix)+len(signed) > MaxLength {
		return "", fmt.Errorf("%w: the token would have more than %d bytes", ErrInvalidClaims, MaxLength)
	}
	return Prefix + signed, nil
}

func (c Claims) validate() error {
	if err := topology.ValidateCell(string(c.Cell)); err != nil {
		return err
	}
	switch {
	case c.ID == "" || len(c.ID) > MaxIDLength:
		return fmt.Errorf("the id is not 1 to %d bytes long", MaxIDLength)
	case c.JobID <= 0 || c.ProjectID <= 0 || c.OrganizationID <= 0:
		return errors.New("job, project and organization must be above zero")
	case c.Attempt < 0:
		return errors.New("the attempt is negative")
	case len(c.Scopes) == 0:
		return errors.New("no scope")
	case len(c.ArtifactJobIDs) > MaxArtifactJobs:
		return fmt.Errorf("artifacts of %d jobs, at most %d", len(c.ArtifactJobIDs), MaxArtifactJobs)
	case c.IssuedAt.IsZero() || !c.ExpiresAt.After(c.IssuedAt):
		return errors.New("the end of the validity is not after its begin")
	default:
		return nil
	}
}

// claims returns the valid content of a payload.
func (p payload) claims() (Claims, error) {
	c := Claims{
		ID: p.ID, JobID: p.JobID, ProjectID: p.ProjectID, OrganizationID: p.OrganizationID, Attempt: p.Attempt,
		Cell: topology.Cell(p.Cell), Scopes: p.Scopes, ArtifactJobIDs: p.ArtifactJobIDs,
	}
	if p.IssuedAt != nil {
		c.IssuedAt = p.IssuedAt.Time
	}
	if p.ExpiresAt != nil {
		c.ExpiresAt = p.ExpiresAt.Time
	}
	return c, c.validate()
}

// Is reports whether the text has the prefix of a job token.
func Is(text string) bool { return strings.HasPrefix(text, Prefix) }
