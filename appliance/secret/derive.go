package secret

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strconv"

	"github.com/google/uuid"
)

// MinMasterBytes is the shortest master secret (agent protocol A.2).
const MinMasterBytes = 32

// APIKeyPrefix starts every operator API key, so that leaked ones can be recognised.
const APIKeyPrefix = "z4k_"

// TokenHashLen is the length of a token or API key hash: 64 lowercase hex digits.
const TokenHashLen = 2 * sha256.Size

const (
	tokenLabel   = "z4j-agent-token-v1"
	apiKeyLabel  = "z4j-api-key-v1"
	projectLabel = "z4j-project-secret-v1:"
)

func sum(key []byte, message ...string) []byte {
	h := hmac.New(sha256.New, key)
	for _, m := range message {
		h.Write([]byte(m))
	}
	return h.Sum(nil)
}

// labelled is the hash key of A.2 and A.5: master || label, in new memory.
func labelled(master []byte, label string) []byte {
	key := make([]byte, 0, len(master)+len(label))
	return append(append(key, master...), label...)
}

// TokenHash returns the stored form of an agent bearer token, 64 lowercase hex digits (agent protocol A.2).
func TokenHash(master []byte, token string) string {
	return hex.EncodeToString(sum(labelled(master, tokenLabel), token))
}

// APIKeyHash returns the stored form of an operator API key, 64 lowercase hex digits (agent protocol A.5).
func APIKeyHash(master []byte, key string) string {
	return hex.EncodeToString(sum(labelled(master, apiKeyLabel), key))
}

// ProjectSecret returns the 32-byte key that signs the frames of a project's agents (agent protocol A.3). master must be
// the current master secret: the previous ones only keep tokens alive.
func ProjectSecret(master []byte, project uuid.UUID) Bytes {
	p := guid(project)
	return NewBytes(sum(master, projectLabel, string(p[:])))
}

// guid returns the little-endian GUID layout: the first three fields reversed.
func guid(u uuid.UUID) [16]byte {
	return [16]byte{u[3], u[2], u[1], u[0], u[5], u[4], u[7], u[6],
		u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]}
}

// HMACSecretText returns a project secret as the agent is configured with it: 44 characters of URL-safe base64 with
// padding (agent protocol A.4).
func HMACSecretText(projectSecret Bytes) Text {
	return NewText(base64.URLEncoding.EncodeToString(projectSecret.Reveal()))
}

// PurgeToken returns the confirmation that a purge of a queue at this depth must carry (agent protocol A.5).
func PurgeToken(projectSecret Bytes, queue string, depth int64) string {
	return hex.EncodeToString(sum(projectSecret.Reveal(), "purge|", queue, "|", strconv.FormatInt(depth, 10)))
}

// NewToken mints an agent bearer token: 32 random bytes in 43 characters of URL-safe base64 (agent protocol A.2).
func NewToken() Text { return NewText(random(32)) }

// NewAPIKey mints an operator API key: APIKeyPrefix and 32 random bytes in 43 characters of URL-safe base64.
func NewAPIKey() Text { return NewText(APIKeyPrefix + random(32)) }

// random returns n random bytes as URL-safe base64 without padding. crypto/rand.Read never fails.
func random(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return base64.RawURLEncoding.EncodeToString(b)
}
