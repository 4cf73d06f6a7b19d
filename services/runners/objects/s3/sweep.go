package s3

import (
	"context"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
)

// uploadsPage is the number of uploads in an answer. S3 allows at most 1,000.
const uploadsPage = 1000

// Sweep implements objects.Store: it aborts uploads. It lists those of the whole bucket, because MinIO lists uploads
// only without a prefix, or with a whole key.
func (s *Store) Sweep(ctx context.Context, before time.Time) (int, error) {
	aborted := 0
	keyMarker, uploadMarker := "", ""
	for {
		page, err := s.client.ListMultipartUploads(ctx, s.bucket, "", keyMarker, uploadMarker, "", uploadsPage)
		if err != nil {
			return aborted, s.failure(ctx, err, "list the uploads of", s.bucket)
		}
		for _, upload := range page.Uploads {
			if !strings.HasPrefix(upload.Key, s.prefix) || !upload.Initiated.Before(before) {
				continue
			}
			err := s.client.AbortMultipartUpload(ctx, s.bucket, upload.Key, upload.UploadID)
			switch {
			case err == nil:
				aborted++
			case minio.ToErrorResponse(err).Code == minio.NoSuchUpload: // another replica was faster
			default:
				return aborted, s.failure(ctx, err, "abort the upload of", upload.Key)
			}
		}
		if !page.IsTruncated {
			return aborted, nil
		}
		keyMarker, uploadMarker = page.NextKeyMarker, page.NextUploadIDMarker
	}
}
