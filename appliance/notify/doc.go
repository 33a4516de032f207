// Package notify tells people what happened: rules of a project collect occurrences in the transaction that stores their
// cause, and a dispatcher sends what they collected through the project's channels.
//
// An occurrence is collected inside the caller's transaction, so it is durable exactly when its cause is, and once for
// each row that causes it. The first of a group speaks at once; what follows within the rule's group time is counted and
// told in one message at its end. Messages wait in an outbox and are sent outside any transaction. A message is sent at
// least once and keeps its id over all attempts, so that a receiver can drop what it has seen.
package notify
