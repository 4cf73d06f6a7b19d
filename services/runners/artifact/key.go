package artifact

import (
	"fmt"

	"github.com/google/uuid"
)

// Key returns the key of an object for an upload of a job. No two uploads have the same.
func Key(jobID int64) string { return fmt.Sprintf("jobs/%d/%s", jobID, uuid.New()) }
